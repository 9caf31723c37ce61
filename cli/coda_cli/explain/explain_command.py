"""`coda explain`: one job, why it waits, who is in the way, and what can be done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from coda.errors import InvalidInput
from coda.lifecycle.failures import SUBMIT_AGAIN
from coda.lifecycle.state import TEMPLATE_REFUSED, StopAnswer
from coda.model import Phase
from coda.wording import moment_text
from coda_cli.exit_codes import one_sentence, result_console
from coda_cli.explain.advice import advice_for
from coda_cli.explain.deadlines import with_deadline
from coda_cli.explain.failure import failure_sentences
from coda_cli.explain.leaders import LATE_S, leaders_away
from coda_cli.explain.name_completion import complete_job, complete_namespace
from coda_cli.explain.queue_command import read_queue, waited
from coda_cli.explain.sharing import (
    CROWDED_OUT,
    crowding_sentences,
    is_on_seats,
    jobs_that_share,
    part_of_crowding,
    sharing_sentences,
)
from coda_cli.explain.subject import Subject, in_namespace_of_kind, read_subject, subject_of
from coda_cli.explain.waiting import Waiting
from coda_cli.explain.waiting_quota import waiting_in_quota
from coda_cli.output import ContextOption, KubeconfigOption, TextOption, TextOutput, print_for_programs, printable
from coda_cli.permitted import PermittedLists, print_notes
from coda_kube.api.client import Client, NotFound, NotServed, Rejected, connect
from coda_kube.api.credentials import current_namespace, users_kubeconfig
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, OPT_IN, SCHEDULER
from coda_kube.objects.quantities import seconds_from_time
from coda_sim.durations import duration_from_seconds

HOW: Final[Mapping[str, str]] = {
    StopAnswer.UNASKED.value: "It had no notice",
    StopAnswer.SAVED.value: "It said that it had saved",
    StopAnswer.EXITED.value: "It ended by itself when it was told",
    StopAnswer.LATE.value: "It did not answer within its notice",
    StopAnswer.CUT_SHORT.value: "It lost a pod or node within its notice",
}

_NOTHING_WAITS: Final = "it has no pods, or they run, have ended, or are another scheduler's (coda explain pod/NAME)"
_HOW_TO_TAKE_PART: Final = (
    "Coda takes new pods of a namespace that takes part: "
    f"kubectl label namespace {{}} {OPT_IN}=true (docs/cpu-jobs.md has what is left out)."
)


def explain_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A TrainingJob, or KIND/NAME of a Job, ReplicaSet, StatefulSet or pod; or as coda queue prints it.",
            autocompletion=complete_job,
        ),
    ],
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Its namespace [default: that of your kubeconfig].",
            autocompletion=complete_namespace,
        ),
    ] = None,
    output: TextOption = TextOutput.TEXT,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Say why a job waits, who holds what it needs, and what you can do."""
    errors = Console(stderr=True)
    with one_sentence(errors):
        told = asyncio.run(_read(kubeconfig, context, namespace, name))
    print_notes(errors, told.notes)
    if print_for_programs(told.as_json(), output):
        return
    console = result_console()
    for sentence in told.sentences:
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


async def _read(kubeconfig: Path | None, context: str | None, namespace: str | None, name: str) -> Explained:
    own = namespace or current_namespace(kubeconfig, context)
    said_twice = (other := in_namespace_of_kind(name)) is not None and other.namespace == namespace
    if namespace and not said_twice and (named := subject_of(name, own).namespace) != namespace:
        raise InvalidInput(f"{name} is in the namespace {named}, and --namespace says {namespace}: leave one out")
    client = await connect(users_kubeconfig(kubeconfig), timeout_s=30.0, context=context)
    try:
        return await explained(client, own, name, is_given=bool(namespace))
    finally:
        await client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What there is to say of a job, for people and for programs. `line` is None for one that does not wait."""

    sentences: tuple[str, ...]
    line: Waiting | None = None
    position: int = 0  # in the queue of its namespace, from 1
    of: int = 0
    name: str = ""
    phase: str = ""
    nodes: tuple[str, ...] = ()
    failure: Json = field(default_factory=dict)  # `status.failure`
    notes: tuple[str, ...] = ()  # what this user may not read, as far as it matters here

    def as_json(self) -> Json:
        """For programs."""
        why = {"failure": self.failure} if self.failure else {}
        if self.line is None:
            return {"name": self.name, "waits": False, "phase": self.phase, "nodes": list(self.nodes), **why}
        place = {"position": self.position, "of": self.of, "advice": advice_for(self.line.code)}
        return {"waits": True, **self.line.as_json(), **place, **why}


async def explained(client: Client, namespace: str, name: str, *, is_given: bool = False) -> Explained:
    """Return what there is to say. `namespace`: that of a name without one. `is_given`: the name is in no other.

    If KIND/NAME is not there, it is read as NAMESPACE/NAME. Raises InvalidInput if there is no such job either, and
    Rejected if a pod is asked for and this user may not list pods."""
    other = in_namespace_of_kind(name)
    if other is None or (is_given and other.namespace != namespace):
        return await _of_subject(client, subject_of(name, namespace))
    try:
        subject = subject_of(name, namespace)
        told = await _of_subject(client, subject)
    except (InvalidInput, Rejected):
        if not await _is_there(client, other):
            raise
        return await _of_subject(client, other)
    if subject == other or not await _is_there(client, other):
        return told
    too = f"There is a TrainingJob {other.name} in the namespace {other.namespace}, too"
    return replace(told, sentences=(*told.sentences, f"{too}: coda explain {other.name} -n {other.namespace}."))


async def _is_there(client: Client, job: Subject) -> bool:
    try:
        return bool(await _training_job(client, job.namespace, job.name))
    except (InvalidInput, Rejected):  # who may not read it is not told of it
        return False


async def _of_subject(client: Client, subject: Subject) -> Explained:
    namespace, kind, plain = subject
    lists, is_training = PermittedLists(client, namespace), subject.is_training
    lines = await read_queue(lists)
    for position, line in enumerate(lines, 1):
        is_pod_of = kind == "pod" and f"Pod/{plain}" in line.known_as
        if line.name == subject.line_name or is_pod_of:
            line = await with_deadline(client, line)
            away = await leaders_away(client, [line])
            told = (*sentences_of(line, position, len(lines), time.time(), away), *waiting_in_quota(line, lines))
            waits = Explained(sentences=told, line=line, position=position, of=len(lines), notes=lists.notes())
            return await _with_attempts(client, namespace, plain, waits) if is_training else waits
    if is_training:
        job = await _training_job(client, namespace, plain)
        neighbours = await _of_neighbours(client, lists, job)
        return _of_a_started(job, neighbours, await _of_attempts(client, job))
    if "pods" in lists.refused:
        raise lists.refused["pods"]
    item = await read_subject(client, subject)
    if item is None:
        raise InvalidInput(f"nothing of {subject.line_name} waits for the planner")
    return _of_another(subject, item)


async def _of_neighbours(client: Client, lists: PermittedLists, job: Json) -> tuple[str, ...]:
    told = tuple(sharing_sentences(job, await jobs_that_share(client, job)))
    if not is_on_seats(job):
        return told
    events = await lists.core("events", part_of_crowding, {"fieldSelector": f"reason={CROWDED_OUT}"})
    return (*told, *crowding_sentences(job, events, time.time()))


def sentences_of(line: Waiting, position: int, of: int, now_s: float, away: str = "") -> Iterator[str]:
    """Yield what is known of something that waits. `away`: that nobody leads who could say more."""
    since = waited(line, now_s)
    yield f"{line.name} waits{f' for {since}' if since else ''}, as number {position} of {of} in its namespace."
    if line.user:
        yield f"It counts for the {_party(line)}."
    if line.wants:
        yield f"It wants {line.wants}."
    if line.code or line.message:
        yield f"Why: {': '.join(part for part in (line.code, line.message) if part)}."
    elif away or (line.since_s and now_s - line.since_s > LATE_S):
        yield "Why: the planner has not said so, and it does within seconds as long as one runs."
    else:
        yield "Why: the planner has not said so yet; it does within seconds."
    if away:
        yield f"Nothing is decided now, and a reason may be old: {away}. Tell an administrator (coda doctor)."
    if line.holders:
        yield f"Held by: {', '.join(line.holders)}."
    if line.not_before_s > now_s:
        yield f"It is not tried before {moment_text(line.not_before_s)}."
    if line.ends_s:
        yield f"Its activeDeadlineSeconds ends it at {moment_text(line.ends_s)}, also if it still waits then."
    if advice := advice_for(line.code):
        yield f"You can: {advice}."


def _party(line: Waiting) -> str:
    namespace = line.name.partition("/")[0]
    return f"namespace {namespace}: no user is known" if line.user == namespace else f"user {line.user}"


async def _training_job(client: Client, namespace: str, name: str) -> Json:
    try:
        return await client.get(f"/apis/{API_VERSION}/namespaces/{namespace}/trainingjobs/{name}")
    except (NotFound, NotServed) as error:
        raise InvalidInput(f"there is no TrainingJob {name} in namespace {namespace}") from error


async def _with_attempts(client: Client, namespace: str, name: str, waits: Explained) -> Explained:
    """Add what is known of the attempts of a waiting job: their pods are gone, and their logs with them."""
    try:
        job = await _training_job(client, namespace, name)
    except InvalidInput:  # it was deleted meanwhile
        return waits
    told = tuple(map(printable, await _of_attempts(client, job)))
    return replace(waits, sentences=waits.sentences + told, failure=(job.get("status") or {}).get("failure") or {})


async def _of_attempts(client: Client, job: Json) -> tuple[str, ...]:
    """Say how attempts of a job ended that failed by themselves, were its trial, or were stopped for another job."""
    status, namespace = job.get("status") or {}, job["metadata"]["namespace"]
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/trainingjobs"
    others = (await client.list_pages(path)).get("items") or () if status.get("failure") else ()
    return (*failure_sentences(job, others, time.time()), *_of_trial(status), *_of_stops(status))


def _of_a_started(job: Json, neighbours: tuple[str, ...], of_attempts: tuple[str, ...]) -> Explained:
    status, metadata = job.get("status") or {}, job["metadata"]
    nodes = sorted(set((status.get("placement") or {}).get("nodes") or ()))
    where = f" on {', '.join(nodes)}" if nodes else ""
    said = f": {status['message']}" if status.get("message") else ""
    if due_s := seconds_from_time(status.get("stopDeadline")):
        said += f", at {moment_text(due_s)} at the latest"
    name, phase = f"{metadata['namespace']}/{metadata['name']}", str(status.get("phase"))
    sentence = f"{name} does not wait: {phase}{where}{said}."
    known = (sentence, *neighbours, *of_attempts)
    sentences = tuple(map(printable, (*known, *_what_runs_it_again(status, known))))
    failure = status.get("failure") or {}
    return Explained(sentences=sentences, name=name, phase=phase, nodes=tuple(nodes), failure=failure)


def _of_another(subject: Subject, item: Json) -> Explained:
    """What there is to say of a pod, or of an owner of pods, of which nothing waits."""
    name = printable(subject.line_name)
    if subject.kind != "pod":
        return Explained(sentences=(f"Nothing of {name} waits for the planner: {_NOTHING_WAITS}.",), name=name)
    spec, phase = item["spec"], str((item.get("status") or {}).get("phase") or "Pending")
    node, scheduler = spec.get("nodeName"), spec.get("schedulerName") or "default-scheduler"
    where = f" on {node}" if node else ""
    if phase == "Pending" and not node and scheduler != SCHEDULER:
        said = f"{name} does not wait for the planner, but for the scheduler {printable(scheduler)}: {phase}."
        return Explained(sentences=(said, _HOW_TO_TAKE_PART.format(subject.namespace)), name=name, phase=phase)
    sentence = f"{name} does not wait for the planner: {phase}{where}."
    return Explained(sentences=(sentence,), name=name, phase=phase, nodes=(node,) if node else ())


def _what_runs_it_again(status: Json, known: Iterable[str]) -> Iterator[str]:
    """Yield what its user does to run a failed job again, unless that is said already."""
    if status.get("phase") != Phase.FAILED.value or any(SUBMIT_AGAIN in sentence for sentence in known):
        return
    if status.get("reason") == TEMPLATE_REFUSED:
        yield "You can: mend its template in place; the edit is taken."
    else:
        yield f"It has ended, and no edit runs it again: {SUBMIT_AGAIN}."


def _of_trial(status: Json) -> Iterator[str]:
    """Yield what came of its trial, and what that cost."""
    trial = status.get("trial") or {}
    if trial.get("outcome"):
        held = duration_from_seconds(float(trial.get("seconds") or 0))
        yield f"Its trial on one GPU took {held}: {trial['outcome']}, {trial.get('message')}."


def _of_stops(status: Json) -> Iterator[str]:
    """Yield how it was stopped for another job, and what that cost."""
    stop = status.get("lastStop")
    if not stop:
        return
    lost_s = float(stop.get("lostSeconds") or 0)
    lost = f"it lost {duration_from_seconds(lost_s)} of work" if lost_s else "no work was lost"
    how = HOW.get(str(stop.get("answer")), "")
    yield f"Attempt {stop['attempt']} was stopped so that {stop['by']} got its room. {how}; {lost}."
