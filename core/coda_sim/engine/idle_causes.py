"""Why GPUs are idle while a GPU job waits. A measure, not a decision: nothing here has an effect on any job.

A node's idle GPUs go to one cause: the first that keeps every waiting job from them, in the order GPUs (too few for a
rank, or the gang finds too few in all: scattered), cores, memory; where there is room, it is the policy that keeps
them, by a quota, a queue that blocks, or a reserve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

from coda_sim.engine.cluster import Cluster
from coda_sim.engine.job_run import JobRun

_NEVER: Final = 1 << 62  # more than any node has


class Demand(NamedTuple):
    """What one rank of a waiting job asks for."""

    gpus: int
    cores: int
    memory_bytes: int


class IdleGpus(NamedTuple):
    """Idle GPUs by cause; those that are in none are scattered."""

    cores: int = 0
    memory: int = 0
    policy: int = 0


_NONE: Final = IdleGpus()

Counted = TypeVar("Counted")


class IdleCauses:
    """The waiting GPU jobs by what they ask for, and the cause of every node's idle GPUs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: Counter[Demand] = Counter()  # jobs of one rank
        self._gangs: Counter[tuple[Demand, int]] = Counter()  # of several: what each rank asks for, and how many
        self._single: list[Demand] = []  # of jobs of one rank, less those that ask for all that another does
        self._stirred: set[Demand] = set()  # of jobs of one rank that came or left since these were found
        self._judged: list[Demand] = []  # what the nodes were judged by
        self._idle_by_node = [_NONE] * len(cluster.nodes)
        self._idle = IdleGpus()
        self.jobs = 0

    def wait(self, run: JobRun) -> None:
        """A GPU job waits from now on."""
        demand, ranks = _key(run)
        self.jobs += 1
        if ranks > 1:
            self._gangs[demand, ranks] += 1
            return
        self._waiting[demand] += 1
        self._stirred.add(demand)

    def leave(self, run: JobRun) -> None:
        """It waits no more; it must ask for what it asked for when it came."""
        demand, ranks = _key(run)
        self.jobs -= 1
        if ranks > 1:
            _take_one(self._gangs, (demand, ranks))
            return
        _take_one(self._waiting, demand)
        self._stirred.add(demand)

    def idle(self) -> IdleGpus:
        """The idle GPUs now. O(nodes that changed), O(nodes) where the demands did, and for gangs of several ranks."""
        touched: Iterable[int] = self._cluster.take_touched()
        self._look_again()
        demands = [*self._single, *self._of_gangs()] if self._gangs else self._single
        if demands != self._judged:
            self._judged, touched = demands, range(len(self._idle_by_node))
        cores, memory, policy = self._idle
        for number in touched:
            before = self._idle_by_node[number]
            after = self._idle_by_node[number] = self._of_node(number)
            if after is not before:
                cores += after.cores - before.cores
                memory += after.memory - before.memory
                policy += after.policy - before.policy
        self._idle = IdleGpus(cores, memory, policy)
        return self._idle

    def _look_again(self) -> None:
        """Most who come start at the same moment: then nothing is another than before."""
        for demand in self._stirred:
            if demand not in self._waiting:
                if demand in self._single:
                    self._single = _least(self._waiting)
                    break
            elif not _is_covered(demand, self._single):
                self._single = sorted([*(one for one in self._single if not _is_covered(one, (demand,))), demand])
        self._stirred.clear()

    def _of_gangs(self) -> list[Demand]:
        """Gangs that would find GPUs for all their ranks; what they lack elsewhere, no node has for them."""
        found: list[Demand] = []
        for demand, replicas in sorted(self._gangs):
            if _is_covered(demand, self._single):
                continue
            gpus, cores, memory_bytes = demand
            if self._ranks(Demand(gpus, 0, 0)) < replicas:
                continue
            if self._ranks(Demand(gpus, cores, 0)) < replicas:
                found.append(Demand(gpus, _NEVER, memory_bytes))
            else:
                lacks_memory = self._ranks(demand) < replicas
                found.append(Demand(gpus, cores, _NEVER) if lacks_memory else demand)
        return found

    def _ranks(self, demand: Demand) -> int:
        """How many ranks would find room."""
        cluster = self._cluster
        gpus, cores, memory_bytes = demand
        total = 0
        for number, free in enumerate(cluster.free_gpus):
            ranks = free // gpus
            if ranks and cores:
                ranks = min(ranks, cluster.free_cores[number] // cores)
            if ranks and memory_bytes:
                ranks = min(ranks, cluster.free_memory_bytes[number] // memory_bytes)
            total += max(0, ranks)
        return total

    def _of_node(self, number: int) -> IdleGpus:
        free = self._cluster.free_gpus[number]
        if not free:
            return _NONE
        free_cores, free_memory_bytes = self._cluster.free_cores[number], self._cluster.free_memory_bytes[number]
        could = [demand for demand in self._judged if demand.gpus <= free]
        if not could:
            return _NONE
        with_cores = [demand for demand in could if demand.cores <= free_cores]
        if not with_cores:
            return IdleGpus(cores=free)
        fits = any(demand.memory_bytes <= free_memory_bytes for demand in with_cores)
        return IdleGpus(policy=free) if fits else IdleGpus(memory=free)


def _key(run: JobRun) -> tuple[Demand, int]:
    request = run.job.request
    return Demand(request.gpus, request.cpu_m // 1000, request.memory_bytes), run.gang.replicas


def _take_one(counts: Counter[Counted], key: Counted) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _least(demands: Iterable[Demand]) -> list[Demand]:
    """Those that do not ask for all that another does, in order."""
    kept: list[Demand] = []
    for demand in sorted(demands):
        if not _is_covered(demand, kept):
            kept.append(demand)
    return kept


def _is_covered(demand: Demand, others: Iterable[Demand]) -> bool:
    """True where another asks for no more of anything: what fits this one fits that."""
    gpus, cores, memory_bytes = demand
    return any(one.gpus <= gpus and one.cores <= cores and one.memory_bytes <= memory_bytes for one in others)
