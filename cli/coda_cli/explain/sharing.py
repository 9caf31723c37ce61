"""Who shares GPUs with whom, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from coda.model import FINISHED
from coda.wording import counted, listed, moment_text
from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import AGENT, API_VERSION, pod_name
from coda_kube.objects.quantities import seconds_from_time

CROWDED_OUT: Final = "CrowdedOut"
SAID_WITHIN_S: Final = 1800.0 + 300.0
"""How old an agent's word about a rank may be: it repeats it every half an hour."""

_FINISHED = frozenset(phase.value for phase in FINISHED)


async def jobs_that_share(client: Client, job: Json) -> tuple[Json, ...]:
    """Return the other jobs that have places, of all namespaces; only of its own where the user may not read others.

    None for a job without a place."""
    if not _nodes(job):
        return ()
    own = f"/apis/{API_VERSION}/namespaces/{job['metadata']['namespace']}/trainingjobs"
    items: Iterable[Json] = ()
    for path in (f"/apis/{API_VERSION}/trainingjobs", own):
        with suppress(Rejected):
            items = (await client.list_pages(path))["items"]
            break
    return tuple(item for item in items if _nodes(item) and item["metadata"]["uid"] != job["metadata"]["uid"])


def is_on_seats(job: Json) -> bool:
    """True if the job has places on GPUs that it shares."""
    return bool(_seats(job))


def sharing_sentences(job: Json, others: Iterable[Json]) -> Iterator[str]:
    """Yield who shares GPUs with the job, and what it costs whom; nothing if nobody does."""
    seats = _seats(job)
    if seats:
        yield from _of_one_on_seats(job, seats, tuple(others))
        return
    guests = [_name(other) for other in others if {node for node, _ in _seats(other)} & set(_nodes(job))]
    if guests:
        yield (
            f"Opportunistic jobs have seats on its nodes: {listed(sorted(guests))}. Some may be on its GPUs, which the "
            "kubelet chose. It goes first: they slow down for it where the agent steers them, and stop if it needs "
            "what they hold."
        )


def part_of_crowding(event: Json) -> Json | None:
    """Return what `crowding_sentences` reads of an event; None if it is no word of an agent about a lack of memory."""
    if (event.get("reason"), event.get("reportingComponent")) != (CROWDED_OUT, AGENT):
        return None
    return {name: event[name] for name in ("message", "eventTime", "involvedObject") if name in event}


def crowding_sentences(job: Json, events: Iterable[Json], now_s: float) -> Iterator[str]:
    """Yield for each rank of a job on seats what its node's agent said last of a lack of memory, in the last half an
    hour: it says so again as long as that lasts."""
    attempt, name = int(job["status"].get("attempt") or 1), job["metadata"]["name"]
    for rank in range(len(_nodes(job))):
        pod = pod_name(name, attempt, rank)
        about = [event for event in events if (event.get("involvedObject") or {}).get("name") == pod]
        last = max(about, key=lambda event: str(event.get("eventTime")), default=None)
        said_s = 0.0 if last is None else seconds_from_time(last.get("eventTime"))
        if last is not None and now_s - said_s < SAID_WITHIN_S:
            yield f"Rank {rank} {last.get('message')} (said by its node's agent at {moment_text(said_s)})."


def _of_one_on_seats(job: Json, seats: set[tuple[str, int]], others: tuple[Json, ...]) -> Iterator[str]:
    where = listed(f"GPU {gpu} of {node}" for node, gpu in sorted(seats))
    yield f"It is opportunistic: it has {counted(len(seats), 'seat')}, on {where}. No quota is charged for it."
    beside = sorted(_name(other) for other in others if _seats(other) & seats)
    yield f"It shares these with {listed(beside)}." if beside else "No other opportunistic job is there."
    sharing = (job.get("status") or {}).get("sharing") or {}
    owners = list(sharing.get("beside") or ())
    if owners:
        yield f"When it started, these GPUs belonged to {listed(owners)}. Owners go first, and guests are slowed down."
    whole = sorted(_name(other) for other in others if not _seats(other) and set(_nodes(other)) & {n for n, _ in seats})
    if unsure := [name for name in whole if name not in owners]:
        yield f"On these nodes {listed(unsure)} have GPUs of their own, perhaps the same ones: they go first."
    speed = sharing.get("expectedSpeed")
    if speed is not None:
        yield f"When it started, it was expected to run at {float(speed):.0%} of its speed alone."
    yield "It is the first to stop when another job needs what it holds."


def _placement(job: Json) -> Json:
    status = job.get("status") or {}
    is_over = status.get("phase") in _FINISHED
    placement: Json = {} if is_over else status.get("placement") or {}
    return placement


def _nodes(job: Json) -> list[str]:
    return list(_placement(job).get("nodes") or ())


def _seats(job: Json) -> set[tuple[str, int]]:
    return set(zip(_nodes(job), _placement(job).get("gpus") or (), strict=False))


def _name(job: Json) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"
