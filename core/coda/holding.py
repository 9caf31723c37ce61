"""Who has what a refused job needs. What must not live here: why it is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import NamedTuple

from coda.model import Job, JobId, Resources, Start, World
from coda.searching import Match
from coda.wording import amount_of
from coda.world import live_placement


class Holding(NamedTuple):
    """What one job holds: its nodes, one entry per rank, and what each rank takes there."""

    job: Job
    nodes: tuple[str, ...]

    @property
    def request(self) -> Resources:
        """What one rank takes."""
        return self.job.request


class Holdings:
    """The holdings of live plans and of the starts of this round. Built only once somebody asks."""

    def __init__(self, world: World, starts: Iterable[Start], number_by_name: Mapping[str, int], count: int) -> None:
        self._world = world
        self._starts = tuple(starts)
        self._number_by_name = number_by_name
        self._count = count
        self._holdings: tuple[Holding, ...] | None = None
        self._answers: dict[tuple[Match, str], tuple[JobId, ...]] = {}

    def on_nodes(self, match: Match, resource: str) -> tuple[JobId, ...]:
        """The jobs that hold most of a resource on a demand's matching nodes, largest first, then by id."""
        answer = self._answers.get((match, resource))
        if answer is None:
            whole = len(match.matching) == len(self._number_by_name)
            matching = frozenset(match.matching)
            amounts = (
                (amount_of(job.request, resource) * (len(nodes) if whole else self._count_on(nodes, matching)), job.id)
                for job, nodes in self._all()
            )
            answer = self._answers[match, resource] = self._largest(amounts)
        return answer

    def of_quota(self, namespace: str, key: str) -> tuple[JobId, ...]:
        """The jobs of a namespace that use most of a quota's key, largest first, then by id."""
        return self._largest(
            (job.quota.get(key, 0) * len(nodes), job.id) for job, nodes in self._all() if job.namespace == namespace
        )

    def _all(self) -> tuple[Holding, ...]:
        if self._holdings is None:
            nodes_by_start = {start.job: start.nodes for start in self._starts}
            self._holdings = tuple(
                Holding(job, nodes)
                for job in self._world.jobs
                if (nodes := nodes_by_start.get(job.id) or _nodes_held(job))
            )
        return self._holdings

    def _count_on(self, nodes: tuple[str, ...], matching: frozenset[int]) -> int:
        return sum(self._number_by_name.get(name) in matching for name in nodes)

    def _largest(self, amounts: Iterable[tuple[int, JobId]]) -> tuple[JobId, ...]:
        held = ((-amount, job) for amount, job in amounts if amount > 0)
        return tuple(job for _, job in nsmallest(self._count, held))


def _nodes_held(job: Job) -> tuple[str, ...]:
    placement = live_placement(job)
    return placement.nodes if placement is not None else tuple(job.unbound.values())
