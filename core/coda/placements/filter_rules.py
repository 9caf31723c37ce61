"""What the filter lets pass and preemption may evict: answers about one pod and the nodes offered to it.

Two kinds of pods ask. A rank of a gang may go only where its released placement says. A foreign pod may not take
capacity that placements withhold, nor capacity that a bound pod took without kube-scheduler knowing. For the rest
kube-scheduler's own arithmetic is enough. The extender's guard asks these, and has the words of each refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, repeat

from coda.model.job import Job, Phase, PlacementState
from coda.model.live_placement import live_placement
from coda.model.resources import HOST_PORT, NOTHING, Resources
from coda.model.seats import request_of_rank

MAX_SCORE = 10
"""The highest score of the extender protocol."""

ENOUGH_NODES = 100
"""How many nodes a pod without preferences may choose from. kube-scheduler's own minimum: `minFeasibleNodesToFind` in
pkg/scheduler/schedule_one.go (1.36)."""

TooSmall = Callable[[Resources], set[str]]
"""Returns the nodes that have too little for a request."""

_MAY_BIND = frozenset({Phase.QUEUED, Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What a gang's pod says about itself: the job's uid, its attempt, rank and placement, its pin and its request."""

    job_uid: str
    attempt: int
    rank: int
    plan_id: str
    pinned_to: str | None
    request: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A foreign pod that passed the filter and may land on any of `nodes`; None: on any node of the cluster."""

    uid: str
    request: Resources
    nodes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictable:
    """A bound pod that kube-scheduler wants to evict."""

    request: Resources
    is_rank: bool


def planned_node(job: Job | None, rank: Rank | None) -> str | None:
    """Return the node where this rank may go, by the job's live released placement; None if none names it.

    The rank must be pinned there, and ask for no more than was planned for it."""
    if job is None or rank is None or job.uid != rank.job_uid or job.phase not in _MAY_BIND:
        return None
    placement = live_placement(job)
    if placement is None or placement.state is not PlacementState.RELEASED:
        return None
    if (placement.attempt, placement.plan_id) != (rank.attempt, rank.plan_id):
        return None
    node = placement.nodes[rank.rank] if 0 <= rank.rank < len(placement.nodes) else None
    if node is None or rank.pinned_to != node or not rank.request.fits_in(request_of_rank(job, placement, rank.rank)):
        return None  # the operator made no such pod: with more, or elsewhere, it takes what is withheld for others
    return node


def kept_for_gangs(
    request: Resources,
    room_by_node: Mapping[str, Resources],
    total: Resources,
    others: Sequence[InFlight],
    *,
    too_small_for: TooSmall | None = None,
) -> set[str]:
    """Return the nodes of `room_by_node` that a foreign pod with this request may not take.

    `room_by_node`: allocatable - used - withheld, only of nodes where something is withheld; of host ports only those
    withheld. `others`: the other foreign pods in flight, each counted on every node it may land on, but for its ports:
    no gang loses by those. `total`: the sum of their requests.
    `too_small_for`: a faster replacement for `full_for`. Cost: O(nodes); in-flight pods are counted per node only if
    all of them together could fill a node."""
    too_small_for = too_small_for or partial(full_for, names=room_by_node, room_by_node=room_by_node)
    refused = too_small_for(request)
    request = without_ports(request)  # what else they may take is judged below
    if others and total.other:
        total = total.of_kinds(request)  # by a port, or a device that is not asked for, no node is doubtful
    doubtful = too_small_for(request + total) - refused if others else set()
    taken = in_flight_by_node(others, doubtful) if doubtful else {}
    refused.update(name for name in doubtful if not request.fits_in(room_by_node[name] - taken.get(name, NOTHING)))
    return refused


def without_ports(amount: Resources) -> Resources:
    """Return the amount without host ports.

    Which foreign pods may share a port of a node is left to kube-scheduler: it also tells their addresses apart."""
    if not amount.other or not any(name.startswith(HOST_PORT) for name in amount.other):
        return amount
    return replace(amount, other={name: n for name, n in amount.other.items() if not name.startswith(HOST_PORT)})


def full_for(request: Resources, names: Iterable[str], room_by_node: Mapping[str, Resources]) -> set[str]:
    """Return those of `names` whose free capacity is known and too small for `request` alone. O(names)."""
    return {name for name in names if (room := room_by_node.get(name)) is not None and not request.fits_in(room)}


def in_flight_by_node(pods: Sequence[InFlight], names: Iterable[str]) -> dict[str, Resources]:
    """Return, for each node of `names`, what pods in flight may take there; nodes without any are absent.

    Cost: O(nodes offered), and one addition for each distinct set of pods that may land on a node."""
    if not pods:
        return {}
    mask_by_node = dict.fromkeys(names, sum(1 << bit for bit, pod in enumerate(pods) if pod.nodes is None))
    for bit, pod in enumerate(pods):
        for name in mask_by_node.keys() & (pod.nodes or ()):
            mask_by_node[name] |= 1 << bit
    sum_by_mask: dict[int, Resources] = {0: NOTHING}
    taken: dict[str, Resources] = {}
    for name, mask in mask_by_node.items():
        if not mask:
            continue
        if mask not in sum_by_mask:
            _sum_up(sum_by_mask, mask, pods)
        taken[name] = sum_by_mask[mask]
    return taken


def _sum_up(sum_by_mask: dict[int, Resources], mask: int, pods: Sequence[InFlight]) -> None:
    """Add the sum of one set of pods, and of the smaller sets it is made from: most sets differ little."""
    missing: list[int] = []
    while mask not in sum_by_mask:
        missing.append(mask)
        mask &= mask - 1  # without the lowest bit: nodes are offered in turns, so sets share the later pods
    for larger in reversed(missing):
        lowest = (larger & -larger).bit_length() - 1
        sum_by_mask[larger] = sum_by_mask[larger & (larger - 1)] + pods[lowest].request


def may_evict(victims: Iterable[Evictable | None], request: Resources, free: Resources) -> bool:
    """True if kube-scheduler may evict these pods of one node for a foreign pod with this request.

    `free`: what the node has free now, less all that is withheld there and what others in flight may take. Never if
    one of them is a rank, since Coda decides about whole gangs; nor if a victim is unknown (None); nor if the pod
    would not fit afterwards, since the filter would refuse the node and the victims would die for nothing."""
    for victim in victims:
        if victim is None or victim.is_rank:
            return False
        free = free + victim.request
    return request.fits_in(free)


def best_candidates(
    names: Sequence[str], score_by_node: Mapping[str, int], best_nodes: Collection[str] = frozenset()
) -> Sequence[str]:
    """Return at most ENOUGH_NODES of `names` with the highest scores (unknown: 0), in the order of `names`.

    `best_nodes`: all nodes that score MAX_SCORE, or nothing. If there are enough of them, the others are not scored.
    Ties: the first. kube-scheduler offers nodes in turns, so over many pods every node is offered. To score more nodes
    would cost it more than all that Coda does for such a pod (docs/decisions/0014). Cost: O(names)."""
    if len(names) <= ENOUGH_NODES:
        return names
    if len(best_nodes) >= ENOUGH_NODES:
        found = list(islice(filter(best_nodes.__contains__, names), ENOUGH_NODES))
        if len(found) == ENOUGH_NODES:
            return found
    scores = bytes(
        map(score_by_node.get, names, repeat(0))
    )  # no bytecode for each name, so the planner's thread cannot interrupt
    best: list[int] = []
    for score in range(MAX_SCORE, -1, -1):
        at = scores.find(score)
        while at >= 0 and len(best) < ENOUGH_NODES:
            best.append(at)
            at = scores.find(score, at + 1)
    return [names[at] for at in sorted(best)]


def foreign_score(free_gpus: int) -> int:
    """Return how well a node with this many free GPUs suits a foreign pod, 0..10: fewer is better.

    Our choice: a node loses one point for each free GPU, so a full node, or one without GPUs, comes first."""
    return MAX_SCORE - max(0, min(MAX_SCORE, free_gpus))
