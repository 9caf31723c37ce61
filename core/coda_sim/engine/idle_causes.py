"""Why GPUs are idle while a GPU job waits. It is only measured: nothing here affects a job.

The idle GPUs of a node get one cause: the first that keeps every waiting job from them. The order is GPUs (too few for
a rank, or too few in all for the gang: scattered), cores, memory. If a job fits, the policy is the cause: a quota, a
blocking queue, or a reserve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

from coda_sim.engine.cluster import Cluster
from coda_sim.engine.job_run import JobRun

_NEVER: Final = 1 << 62  # more than any node has


class RankRequest(NamedTuple):
    """What one rank of a waiting job asks for."""

    gpus: int
    cores: int
    memory_bytes: int


class IdleGpus(NamedTuple):
    """Idle GPUs by cause; the rest are scattered."""

    cores: int = 0
    memory: int = 0
    policy: int = 0


_NONE: Final = IdleGpus()

Counted = TypeVar("Counted")


class RankCounts:
    """How many ranks of a request fit now, over all nodes. What is asked again costs O(changed nodes)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_node: dict[RankRequest, list[int]] = {}
        self._total: dict[RankRequest, int] = {}
        self._asked: set[RankRequest] = set()  # since the last update

    def update(self, touched: Iterable[int]) -> None:
        """Take in the nodes that changed, and forget the requests that nobody asked about since the last update."""
        for request in [one for one in self._by_node if one not in self._asked]:
            del self._by_node[request], self._total[request]
        self._asked.clear()
        for request, counts in self._by_node.items():
            for number in touched:
                now = self._on(number, request)
                self._total[request] += now - counts[number]
                counts[number] = now

    def of(self, request: RankRequest) -> int:
        """Return how many ranks fit. O(nodes) for a request that was not asked about before the last update."""
        self._asked.add(request)
        if request not in self._by_node:
            counts = [self._on(number, request) for number in range(len(self._cluster.free_gpus))]
            self._by_node[request], self._total[request] = counts, sum(counts)
        return self._total[request]

    def _on(self, number: int, request: RankRequest) -> int:
        cluster = self._cluster
        gpus, cores, memory_bytes = request
        ranks = cluster.free_gpus[number] // gpus
        if ranks and cores:
            ranks = min(ranks, cluster.free_cores[number] // cores)
        if ranks and memory_bytes:
            ranks = min(ranks, cluster.free_memory_bytes[number] // memory_bytes)
        return max(0, ranks)


class IdleCauses:
    """The waiting GPU jobs by request, and the cause of every node's idle GPUs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: Counter[RankRequest] = Counter()  # jobs of one rank
        self._gangs: Counter[tuple[RankRequest, int]] = Counter()  # of several: what each rank asks for, and how many
        self._single: list[RankRequest] = []  # requests of one-rank jobs, without those that cover another one
        self._stirred: set[RankRequest] = set()  # of one-rank jobs that came or left since `_single` was computed
        self._ranks = RankCounts(cluster)
        self._judged: list[RankRequest] = []  # the requests that `_idle_by_node` is for
        self._idle_by_node = [_NONE] * len(cluster.nodes)
        self._idle = IdleGpus()
        self.jobs = 0

    def add_waiting(self, run: JobRun) -> None:
        """Add a GPU job that waits."""
        request, ranks = _key(run)
        self.jobs += 1
        if ranks > 1:
            self._gangs[request, ranks] += 1
            return
        self._waiting[request] += 1
        self._stirred.add(request)

    def remove_waiting(self, run: JobRun) -> None:
        """Remove a GPU job that does not wait any more; its request must be the same as when it was added."""
        request, ranks = _key(run)
        self.jobs -= 1
        if ranks > 1:
            _take_one(self._gangs, (request, ranks))
            return
        _take_one(self._waiting, request)
        self._stirred.add(request)

    def idle(self) -> IdleGpus:
        """Return the idle GPUs now. O(changed nodes); O(nodes) if requests changed."""
        touched: Iterable[int] = self._cluster.pop_touched()
        self._ranks.update(touched)
        self._update_single()
        requests = [*self._single, *self._of_gangs()] if self._gangs else self._single
        if not requests and not self._judged:
            return self._idle
        if requests != self._judged:
            self._judged, touched = requests, range(len(self._idle_by_node))
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

    def _update_single(self) -> None:
        """Most new jobs start at the same time: then nothing has changed."""
        for request in self._stirred:
            if request not in self._waiting:
                if request in self._single:
                    self._single = _least(self._waiting)
                    break
            elif not _is_covered(request, self._single):
                self._single = sorted([*(one for one in self._single if not _is_covered(one, (request,))), request])
        self._stirred.clear()

    def _of_gangs(self) -> list[RankRequest]:
        """The gangs with enough GPUs for all ranks; what else they lack is set to more than any node has."""
        found: list[RankRequest] = []
        for request, replicas in sorted(self._gangs):
            if _is_covered(request, self._single):
                continue
            gpus, cores, memory_bytes = request
            if self._ranks.of(RankRequest(gpus, 0, 0)) < replicas:
                continue
            if self._ranks.of(RankRequest(gpus, cores, 0)) < replicas:
                found.append(RankRequest(gpus, _NEVER, memory_bytes))
            else:
                lacks_memory = self._ranks.of(request) < replicas
                found.append(RankRequest(gpus, cores, _NEVER) if lacks_memory else request)
        return found

    def _of_node(self, number: int) -> IdleGpus:
        free = self._cluster.free_gpus[number]
        if not free:
            return _NONE
        free_cores, free_memory_bytes = self._cluster.free_cores[number], self._cluster.free_memory_bytes[number]
        could = [request for request in self._judged if request.gpus <= free]
        if not could:
            return _NONE
        with_cores = [request for request in could if request.cores <= free_cores]
        if not with_cores:
            return IdleGpus(cores=free)
        fits = any(request.memory_bytes <= free_memory_bytes for request in with_cores)
        return IdleGpus(policy=free) if fits else IdleGpus(memory=free)


def _key(run: JobRun) -> tuple[RankRequest, int]:
    asked = run.job.request
    return RankRequest(asked.gpus, asked.cpu_m // 1000, asked.memory_bytes), run.gang.replicas


def _take_one(counts: Counter[Counted], key: Counted) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _least(requests: Iterable[RankRequest]) -> list[RankRequest]:
    """The requests that do not cover another one, in order."""
    kept: list[RankRequest] = []
    for request in sorted(requests):
        if not _is_covered(request, kept):
            kept.append(request)
    return kept


def _is_covered(request: RankRequest, others: Iterable[RankRequest]) -> bool:
    """True if one of `others` asks for no more of anything: if this one fits, that one fits too."""
    gpus, cores, memory_bytes = request
    return any(one.gpus <= gpus and one.cores <= cores and one.memory_bytes <= memory_bytes for one in others)
