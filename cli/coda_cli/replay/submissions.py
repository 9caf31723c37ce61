"""From gangs to TrainingJobs in the API server, each at its time.

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

from coda.errors import InvalidInput, Outage
from coda.wording import counted
from coda_cli.job_history import jobs_path
from coda_kube.api.client import AlreadyExists, Client, NotFound, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, KIND
from coda_lab.kubelets.behaviour import PREFIX as SIMULATION_PREFIX
from coda_sim.traces import RecordedStatus
from coda_sim.workload import Gang

CONCURRENT = 32  # creates at the same time; at 20 ms each that is far more than 50 per second
RETRY_FOR_S = 60.0
LABEL_BY = "app.kubernetes.io/managed-by"
LABEL_RUN = "app.kubernetes.io/instance"
REPLAY = "coda-replay"
ANNOTATION_RUN_SECONDS = f"{SIMULATION_PREFIX}run-seconds"
ANNOTATION_RUN_FROM = f"{SIMULATION_PREFIX}run-from"
ANNOTATION_EXIT_CODE = f"{SIMULATION_PREFIX}exit-code"

_RETRY_DELAYS_S = (0.1, 0.3, 1.0, 2.0, 5.0)
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One TrainingJob to create, `at_s` seconds after the start of the replay."""

    name: str
    at_s: float
    gang: Gang
    manifest: Json
    expects_failure: bool = False


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
    """How gangs become TrainingJobs. `speed` divides every time. `with_failures`: recorded failures fail.
    `with_pods`: their pods are followed too, which not every user is allowed to do."""

    namespace: str
    run: str
    speed: float
    image: str
    with_failures: bool = False
    with_pods: bool = False


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
    """Return each gang as a TrainingJob. It is due at its submit time after the first one, divided by the speed."""
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
        )
        for gang in gangs
    )


def _fails(gang: Gang, manner: Manner) -> bool:
    return manner.with_failures and gang.row.status is RecordedStatus.FAILED


def _manifest(gang: Gang, manner: Manner, name: str, source: str) -> Json:
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
        "metadata": {
            "name": name,
            "namespace": manner.namespace,
            "labels": {LABEL_BY: REPLAY, LABEL_RUN: manner.run},
            "annotations": {"trace-row": f"{source}:{gang.row.line}", "trace-job-id": gang.row.job_id},
        },
        "spec": spec,
    }


async def check_ready(client: Client, namespace: str, submissions: Sequence[Submission]) -> None:
    """Raise InvalidInput if the cluster takes no TrainingJob here, or already has some of these names."""
    try:
        listing = await client.list_pages(jobs_path(namespace))
    except NotFound as error:
        raise InvalidInput(f"this cluster does not know TrainingJobs: install Coda first ({error})") from error
    except Rejected as error:
        raise InvalidInput(f"TrainingJobs of namespace {namespace} cannot be listed: {error}") from error
    taken = {item["metadata"]["name"] for item in listing["items"]} & {one.name for one in submissions}
    if taken:
        few = ", ".join(sorted(taken)[:3]) + (", ..." if len(taken) > 3 else "")
        raise InvalidInput(
            f"namespace {namespace} already has {counted(len(taken), 'TrainingJob')} with names of this trace ({few}): "
            f"give another --namespace, or delete them: kubectl -n {namespace} delete tj -l {LABEL_BY}={REPLAY}"
        )
    try:
        await client.create(jobs_path(namespace), submissions[0].manifest, {"dryRun": "All"})
    except Rejected as error:
        if error.status in (
            403,
            404,
        ):  # a missing namespace or right stops all jobs, anything else perhaps only this one
            raise InvalidInput(f"no TrainingJob can be created in namespace {namespace}: {error}") from error


Record = Callable[[Submission, Sent], None]


async def submit_all(
    client: Client,
    submissions: Sequence[Submission],
    *,
    start_s: float,
    record: Record,
    queued: Callable[[Submission], Awaitable[None]] | None = None,
) -> None:
    """Create each job at `start_s` (seconds since 1970) plus its `at_s`, at most 32 at a time, and `record` each.

    `queued` returns when a job is in the queue, or need not be waited for; then the next one is sent."""
    gate = asyncio.Semaphore(CONCURRENT)

    async def submit(submission: Submission) -> None:
        try:
            record(submission, await _submitted(client, submission, start_s + submission.at_s))
        finally:
            gate.release()

    async with asyncio.TaskGroup() as group:
        for submission in submissions:
            await asyncio.sleep(max(0.0, start_s + submission.at_s - time.time()))
            await gate.acquire()
            group.create_task(submit(submission))
            if queued is not None:
                await queued(submission)


async def _submitted(client: Client, submission: Submission, planned_s: float) -> Sent:
    sent_s = time.time()
    path = jobs_path(submission.manifest["metadata"]["namespace"])
    refusal = await _refusal(lambda: client.create(path, submission.manifest), give_up_s=sent_s + RETRY_FOR_S)
    return Sent(planned_s=planned_s, sent_s=sent_s, refusal=refusal)


async def _refusal(create: Callable[[], Awaitable[Json]], *, give_up_s: float) -> str | None:
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
