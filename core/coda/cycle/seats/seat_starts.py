"""Which waiting jobs get seats, and where: Algorithm 1 and the pairing of `coda.sharing` on the GPUs that are open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coda.cache.quotas import QuotaLedger, beyond_quota
from coda.cycle.seats.board import Board, SeatGpu, profile_of
from coda.cycle.seats.seat_reasons import (
    Place,
    lasting_reason,
    matching_places,
    no_domain_reason,
    shortage_reason,
    too_slow_reason,
    unknown_level_reason,
)
from coda.cycle.wait_reasons import held_by_itself
from coda.model.decision import Start, WaitReason
from coda.model.job import Job
from coda.model.resources import NOTHING, Resources
from coda.model.seats import as_sharer
from coda.model.world import Node
from coda.policy.config import PolicyConfig
from coda.sharing.config import SharingConfig
from coda.sharing.gpu_placement import GpuChoice, gpus_for_opportunistic

_SHARING = SharingConfig(seats=64)  # the nodes say how many seats there are


@dataclass(slots=True)
class SeatStarts:
    """Starts jobs on seats, one after the other. What one gets the next ones do not."""

    nodes: Sequence[Node]
    free: dict[str, Resources]  # by node name
    board: Board
    quotas: QuotaLedger
    config: PolicyConfig
    now_s: float

    def start(self, waiting: Job) -> Start | WaitReason:
        """Return the start of a waiting job on seats, or why it must wait. O(GPUs with seats x log)."""
        held = held_by_itself(waiting, self.now_s)
        if held is not None:
            return held
        job = as_sharer(waiting)
        matching = matching_places(job, self._places())
        reason = lasting_reason(job, matching) or beyond_quota(job, self.quotas)
        if reason is not None:
            return reason
        found = self._choice(job, matching)
        if not isinstance(found, GpuChoice):
            return found
        return self._started(job, found)

    def _places(self) -> list[Place]:
        node_by_name = {node.name: node for node in self.nodes}
        return [
            Place(gpu=gpu, node=node_by_name[name], free=self.free.get(name, NOTHING))
            for (name, _), gpu in self.board.items()
        ]

    def _choice(self, job: Job, matching: Sequence[Place]) -> GpuChoice | WaitReason:
        """The best choice of all domains in which the gang may be."""
        domains = _domains(job, matching, self.config)
        if domains is None:
            return unknown_level_reason(job)
        choices = [_choice_of(job, members) for members in domains]
        fitting = [choice for choice in choices if choice.starts]
        if fitting:
            return max(fitting, key=lambda choice: choice.speed)  # ties: the first domain
        open_to = _open_to(job, matching)
        if len(open_to) < job.replicas:
            return shortage_reason(job, matching, self.config.refusal_holders)
        if job.within is not None and all(len(_open_to(job, members)) < job.replicas for members in domains):
            return no_domain_reason(job, len(open_to))
        best = max(choices, key=lambda choice: choice.speed)
        sitting = [one.id for gpu in open_to for one in gpu.sharers]
        return too_slow_reason(best.reason, sitting, self.config.refusal_holders)

    def _started(self, job: Job, choice: GpuChoice) -> Start:
        # Ranks of one node follow each other.
        places = sorted((gpu.node, gpu.index) for gpu in choice.gpus)
        owners = [owner.job.id for place in places if (owner := self.board[place].owner) is not None]
        for place in places:
            self.board[place] = self.board[place].joined_by(job)
            self.free[place[0]] = self.free[place[0]] - job.request
        self.quotas.count_start(job)
        return Start(
            job=job.id,
            attempt=job.attempt,
            generation=job.generation,
            nodes=tuple([node for node, _ in places]),
            cpus_per_replica=job.cpus_per_replica,
            gpus=tuple([gpu for _, gpu in places]),
            speed=choice.speed,
            beside=tuple(dict.fromkeys(owners)),
        )


def _domains(job: Job, places: Sequence[Place], config: PolicyConfig) -> list[list[Place]] | None:
    """The places by the domain of the level that the job requires, in order; None: nobody knows that level."""
    if job.within is None:
        return [list(places)]
    number = config.level_index(job.within)
    if number is None:
        return None
    by_domain: dict[tuple[str, ...], list[Place]] = {}
    for place in places:
        labels = place.node.labels
        if config.levels[number].label in labels:  # its domain and those around it, as in `LevelDomains`
            domain = tuple(labels.get(level.label, "") for level in reversed(config.levels[: number + 1]))
            by_domain.setdefault(domain, []).append(place)
    return [by_domain[domain] for domain in sorted(by_domain)] or [[]]


def _choice_of(job: Job, places: Sequence[Place]) -> GpuChoice:
    gpus = _open_to(job, places)
    if len(gpus) < job.replicas:
        return GpuChoice(gpus=(), starts=False, speed=0.0)
    return gpus_for_opportunistic(profile_of(job), job.replicas, [gpu.as_shared(job) for gpu in gpus], _SHARING)


def _open_to(job: Job, places: Iterable[Place]) -> list[SeatGpu]:
    """The GPUs that may take a rank, of each node no more than it has the rest for: those of nobody and the emptiest
    first."""
    by_node: dict[str, list[Place]] = {}
    for place in places:
        if place.obstacle(job) is None:
            by_node.setdefault(place.node.name, []).append(place)
    found: list[SeatGpu] = []
    for members in by_node.values():
        ranks = job.request.times_in(members[0].free)
        found += sorted((one.gpu for one in members), key=_fullness)[:ranks]
    return found


def _fullness(gpu: SeatGpu) -> tuple[bool, int, float, int]:
    return gpu.owner is not None, len(gpu.sharers), 0.0 if gpu.owner is None else gpu.owner.profile.duty, gpu.index
