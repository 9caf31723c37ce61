"""`coda explain`: one job, why it waits, who is in the way, and what can be done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from coda.errors import InvalidInput
from coda.wording import listed, moment_text
from coda_cli.exit_codes import one_sentence, result_console
from coda_cli.explain.advice import advice_for
from coda_cli.explain.name_completion import complete_job, complete_namespace
from coda_cli.explain.queue_command import read_queue, waited
from coda_cli.explain.waiting import Waiting
from coda_cli.output import KubeconfigOption, TextOption, TextOutput, print_for_programs
from coda_kube.api.client import Client, NotFound, connect
from coda_kube.api.credentials import current_namespace
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION

KINDS: Final = ("trainingjob", "tj", "job", "replicaset", "statefulset", "pod")


def explain_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A TrainingJob, or KIND/NAME of a Job, ReplicaSet, StatefulSet or pod.",
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
) -> None:
    """Say why a job waits, who holds what it needs, and what you can do."""
    with one_sentence(Console(stderr=True)):
        told = asyncio.run(_read(kubeconfig, namespace, name))
    if print_for_programs(told.as_json(), output):
        return
    console = result_console()
    for sentence in told.sentences:
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


async def _read(kubeconfig: Path | None, namespace: str | None, name: str) -> Explained:
    client = await connect(str(kubeconfig) if kubeconfig else None, timeout_s=30.0)
    try:
        return await explained(client, namespace or current_namespace(kubeconfig), name)
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

    def as_json(self) -> Json:
        """For programs."""
        if self.line is None:
            return {"name": self.name, "waits": False, "phase": self.phase, "nodes": list(self.nodes)}
        place = {"position": self.position, "of": self.of, "advice": advice_for(self.line.code)}
        return {"waits": True, **self.line.as_json(), **place}


async def explained(client: Client, namespace: str, name: str) -> Explained:
    """Return what there is to say. Raises InvalidInput if there is no such job."""
    kind, _, plain = name.rpartition("/")
    if kind and kind not in KINDS:
        raise InvalidInput(f"{name}: write NAME of a TrainingJob, or one of {listed(KINDS)} before the slash")
    lines = await read_queue(client, namespace)
    wanted = f"{namespace}/{plain}" if kind in ("", "trainingjob", "tj") else f"{namespace}/{kind}/{plain}"
    for position, line in enumerate(lines, 1):
        is_pod_of = kind == "pod" and f"Pod/{plain}" in line.known_as
        if line.name == wanted or is_pod_of:
            sentences = tuple(sentences_of(line, position, len(lines), time.time()))
            return Explained(sentences=sentences, line=line, position=position, of=len(lines))
    if kind in ("", "trainingjob", "tj"):
        return _of_a_started(await _training_job(client, namespace, plain))
    raise InvalidInput(f"nothing of {wanted} waits for the planner")


def sentences_of(line: Waiting, position: int, of: int, now_s: float) -> Iterator[str]:
    """Yield what is known of something that waits."""
    since = waited(line, now_s)
    yield f"{line.name} waits{f' for {since}' if since else ''}, as number {position} of {of} in its namespace."
    if line.user:
        yield f"It counts for the {_party(line)}."
    if line.wants:
        yield f"It wants {line.wants}."
    if line.code or line.message:
        yield f"Why: {': '.join(part for part in (line.code, line.message) if part)}."
    else:
        yield "Why: the planner has not said so yet; it does within seconds."
    if line.holders:
        yield f"Held by: {', '.join(line.holders)}."
    if line.not_before_s > now_s:
        yield f"It is not tried before {moment_text(line.not_before_s)}."
    if advice := advice_for(line.code):
        yield f"You can: {advice}."


def _party(line: Waiting) -> str:
    namespace = line.name.partition("/")[0]
    return f"namespace {namespace}: no user is known" if line.user == namespace else f"user {line.user}"


async def _training_job(client: Client, namespace: str, name: str) -> Json:
    try:
        return await client.get(f"/apis/{API_VERSION}/namespaces/{namespace}/trainingjobs/{name}")
    except NotFound as error:
        raise InvalidInput(f"there is no TrainingJob {name} in namespace {namespace}") from error


def _of_a_started(job: Json) -> Explained:
    status, metadata = job.get("status") or {}, job["metadata"]
    nodes = sorted(set((status.get("placement") or {}).get("nodes") or ()))
    where = f" on {', '.join(nodes)}" if nodes else ""
    said = f": {status['message']}" if status.get("message") else ""
    name, phase = f"{metadata['namespace']}/{metadata['name']}", str(status.get("phase"))
    sentence = f"{name} does not wait: {phase}{where}{said}."
    return Explained(sentences=(sentence,), name=name, phase=phase, nodes=tuple(nodes))
