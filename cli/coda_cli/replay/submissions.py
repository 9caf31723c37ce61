"""From gangs to TrainingJobs and Jobs in the API server, each at its time.

The planned and the real time of each submission are kept, so a late one is seen. If the API server does not answer,
submissions are repeated for a while; a job that it refuses is kept with its sentence.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from coda.errors import InvalidInput, Outage
from coda.wording import counted
from coda_cli.job_history import jobs_path
from coda_cli.replay.cpu_job_objects import ANNOTATION_RUN_FROM, ANNOTATION_RUN_SECONDS, STOP_S, batch_job
from coda_kube.api.client import AlreadyExists, Client, NotServed, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER, API_VERSION, KIND
from coda_lab.kubelets.behaviour import PREFIX as SIMULATION_PREFIX
from coda_sim.engine import COSTS_BY_SETTING, CostSetting
from coda_sim.traces import RecordedStatus
from coda_sim.workload import Gang

CONCURRENT = 32  # creates at the same time; at 20 ms each that is far more than 50 per second
RETRY_FOR_S = 60.0
LABEL_BY = "app.kubernetes.io/managed-by"
LABEL_RUN = "app.kubernetes.io/instance"
REPLAY = "coda-replay"
USERS: Final = "replay-"  # begins the namespaces of the users of a trace
ANNOTATION_EXIT_CODE = f"{SIMULATION_PREFIX}exit-code"

_RETRY_DELAYS_S = (0.1, 0.3, 1.0, 2.0, 5.0)
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One TrainingJob or CPU job to create, `at_s` seconds after the start of the replay.

    `manifest`: the TrainingJob, or the Job whose pods are created. `resumes`: a CPU job that is stopped goes on where
    it was; else it begins again."""

    name: str
    at_s: float
    gang: Gang
    manifest: Json
    expects_failure: bool = False
    resumes: bool = False

    @property
    def is_cpu_job(self) -> bool:
        """True if it asks for no GPU."""
        return not self.gang.gpus

    @property
    def namespace(self) -> str:
        """Return the namespace of its objects."""
        return str(self.manifest["metadata"]["namespace"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """When a submission was due and when its create was first sent, by this machine's clock; and a refusal."""

    planned_s: float
    sent_s: float
    refusal: str | None = None  # the API server's sentence, or why it never answered

    @property
    def lag_s(self) -> float:
        """Return how late it was sent."""
        return max(0.0, self.sent_s - self.planned_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How gangs become objects. `speed` divides every time. `with_failures`: recorded failures fail.

    with_pods: the pods of TrainingJobs are followed too, which not every user is allowed to do
    by_user: each user of the trace has a namespace and is the user of its jobs; only an administrator may submit so
    opts_in: the replay opts its namespaces in to CPU jobs
    costs: whether CPU jobs that are stopped begin again, as in `coda simulate`"""

    namespace: str
    run: str
    speed: float
    image: str
    with_failures: bool = False
    with_pods: bool = False
    by_user: bool = False
    opts_in: bool = False
    costs: CostSetting = CostSetting.PAID

    @property
    def followed_namespace(self) -> str:
        """Return the namespace in which everything happens; empty if there are several."""
        return "" if self.by_user else self.namespace

    def namespace_of(self, user: str) -> str:
        """Return where the jobs of a user of the trace are created. Rows without a user share one namespace."""
        return name_from_job_id(f"{USERS}{user}") if self.by_user and user else self.namespace


def name_from_job_id(job_id: str) -> str:
    """Return a job name of a-z, 0-9 and '-', a letter first, at most 63 long: `Job_7` -> `job-7`, `7` -> `j-7`."""
    name = re.sub(r"[^a-z0-9]+", "-", job_id.lower()).strip("-")
    if not name or not name[0].isalpha():
        name = f"j-{name}".rstrip("-")
    return name[:_LONGEST_NAME].rstrip("-")


def names_by_job_id(job_ids: Iterable[str]) -> dict[str, str]:
    """Return a different name for each id: ids that would share a name get part of their hash at its end."""
    wanted = {job_id: name_from_job_id(job_id) for job_id in job_ids}
    counts: dict[str, int] = {}
    for name in wanted.values():
        counts[name] = counts.get(name, 0) + 1
    names: dict[str, str] = {}
    for job_id, name in wanted.items():
        if counts[name] > 1:
            digest = hashlib.sha256(job_id.encode()).hexdigest()[:10]
            name = f"{name[: _LONGEST_NAME - 11].rstrip('-')}-{digest}"
        names[job_id] = name
    return names


def submissions_from_gangs(gangs: Sequence[Gang], manner: Manner, *, source: str) -> tuple[Submission, ...]:
    """Return each gang as a TrainingJob, or as a Job if it has no GPUs.

    It is due at its submit time after the first one, divided by the speed."""
    if not gangs:
        return ()
    names = names_by_job_id(gang.row.job_id for gang in gangs)
    first_s = gangs[0].row.submit_s
    return tuple(
        Submission(
            name=names[gang.row.job_id],
            at_s=(gang.row.submit_s - first_s) / manner.speed,
            gang=gang,
            manifest=_manifest(gang, manner, names[gang.row.job_id], source),
            expects_failure=_fails(gang, manner),
            resumes=COSTS_BY_SETTING[manner.costs].resumes(gang.row.job_id, gang.gpus),
        )
        for gang in gangs
    )


def _fails(gang: Gang, manner: Manner) -> bool:
    return manner.with_failures and gang.row.status is RecordedStatus.FAILED


def _manifest(gang: Gang, manner: Manner, name: str, source: str) -> Json:
    metadata: Json = {
        "name": name,
        "namespace": manner.namespace_of(gang.row.user),
        "labels": {LABEL_BY: REPLAY, LABEL_RUN: manner.run},
        "annotations": {"trace-row": f"{source}:{gang.row.line}", "trace-job-id": gang.row.job_id},
    }
    if manner.by_user and gang.row.user:
        metadata["annotations"][ANNOTATION_USER] = gang.row.user
    if not gang.gpus:
        stop_s, cpus = STOP_S / manner.speed, gang.cpus_per_replica
        return batch_job(metadata, pods=gang.replicas, cpus=cpus, image=manner.image, stop_s=stop_s)
    return _training_job(gang, manner, metadata)


def _training_job(gang: Gang, manner: Manner, metadata: Json) -> Json:
    run_s = f"{gang.row.duration_s / manner.speed:.6f}"
    annotations = {ANNOTATION_RUN_SECONDS: run_s, ANNOTATION_RUN_FROM: "placement"}
    command = ["sleep", run_s]
    if _fails(gang, manner):
        annotations[ANNOTATION_EXIT_CODE] = "1"
        command = ["sh", "-c", f"sleep {run_s}; exit 1"]
    spec: Json = {
        "replicas": gang.replicas,
        "gpusPerReplica": gang.gpus_per_replica,
        "cpusPerReplica": gang.cpus_per_replica,
        "template": {
            "metadata": {"annotations": annotations},
            "spec": {
                "terminationGracePeriodSeconds": 2,  # `sleep` as process 1 ignores SIGTERM
                "containers": [{"name": "main", "image": manner.image, "command": command}],
            },
        },
    }
    if _fails(gang, manner):
        spec["retries"] = 0  # the recorded run is the whole load; another attempt would add to it
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": spec,
    }


async def check_ready(client: Client, namespace: str, submissions: Sequence[Submission]) -> None:
    """Raise InvalidInput if the cluster takes no TrainingJob here, or already has some of these names.

    An empty namespace: each has its own."""
    try:
        listing = await client.list_pages(jobs_path(namespace))
    except NotServed as error:
        raise InvalidInput(f"this cluster does not know TrainingJobs: install Coda first ({error})") from error
    except Rejected as error:
        raise InvalidInput(f"TrainingJobs of namespace {namespace} cannot be listed: {error}") from error
    found = {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in listing["items"]}
    if taken := sorted(found & {(one.namespace, one.name) for one in submissions}):
        few = ", ".join(name for _, name in taken[:3]) + (", ..." if len(taken) > 3 else "")
        where = f"namespace {namespace}" if namespace else "the cluster"
        remedy = "give another --namespace, or delete them" if namespace else "delete them"
        scope = f"-n {namespace}" if namespace else "-A"
        raise InvalidInput(
            f"{where} already has {counted(len(taken), 'TrainingJob')} with names of this trace ({few}): "
            f"{remedy}: kubectl delete tj {scope} -l {LABEL_BY}={REPLAY}"
        )
    first = next((one for one in submissions if not one.is_cpu_job), None)
    if first is None:
        return
    try:
        await client.create(jobs_path(first.namespace), first.manifest, {"dryRun": "All"})
    except Rejected as error:
        if error.status in (
            403,
            404,
        ):  # a missing namespace or right stops all jobs, anything else perhaps only this one
            raise InvalidInput(f"no TrainingJob can be created in namespace {first.namespace}: {error}") from error


Record = Callable[[Submission, Sent], None]
Create = Callable[[Submission], Awaitable[object]]


def creating(client: Client) -> Create:
    """Return the way to create a TrainingJob."""

    async def create(submission: Submission) -> None:
        await client.create(jobs_path(submission.namespace), submission.manifest)

    return create


async def submit_all(
    create: Create,
    submissions: Sequence[Submission],
    *,
    start_s: float,
    record: Record,
    queued: Callable[[Submission], Awaitable[None]] | None = None,
) -> None:
    """Create each job at `start_s` (seconds since 1970) plus its `at_s`, at most 32 at a time, and `record` each.

    `create` makes one, and may be called again after an outage.
    `queued` returns when a job is in the queue, or need not be waited for; then the next one is sent."""
    gate = asyncio.Semaphore(CONCURRENT)

    async def submit(submission: Submission) -> None:
        try:
            record(submission, await _submitted(create, submission, start_s + submission.at_s))
        finally:
            gate.release()

    async with asyncio.TaskGroup() as group:
        for submission in submissions:
            await asyncio.sleep(max(0.0, start_s + submission.at_s - time.time()))
            await gate.acquire()
            group.create_task(submit(submission))
            if queued is not None:
                await queued(submission)


async def _submitted(create: Create, submission: Submission, planned_s: float) -> Sent:
    sent_s = time.time()
    refusal = await _refusal(lambda: create(submission), give_up_s=sent_s + RETRY_FOR_S)
    return Sent(planned_s=planned_s, sent_s=sent_s, refusal=refusal)


async def _refusal(create: Callable[[], Awaitable[object]], *, give_up_s: float) -> str | None:
    """None once the object is there; else the sentence of who refused it."""
    attempts = 0
    while True:
        try:
            await create()
        except AlreadyExists as error:
            # The name was free at the start: after an unanswered try, the object that is there now is that try's.
            return None if attempts else str(error)
        except Outage as error:
            if time.time() > give_up_s:
                return f"not submitted within {RETRY_FOR_S:.0f} s: {error}"
            await asyncio.sleep(_RETRY_DELAYS_S[min(attempts, len(_RETRY_DELAYS_S) - 1)])
            attempts += 1
        except Rejected as error:
            return str(error)
        else:
            return None
