"""The waiting gangs that prefer to be close together, and the level that each of them waits for now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from heapq import heappop, heappush
from math import inf

from coda.model.job import Job, JobId
from coda.model.resources import key_of_amount
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.locality import LevelHold, hold_of, steps_of
from coda.policy.config import PolicyConfig

RunS = Callable[[Job], float]
"""How long a job is expected to run in all, in seconds; 0: nobody knows."""


class PreferredLevels:
    """Follows the waiting jobs; `pop_moved` says whose level is another one since it was last asked.

    Whether a domain holds a gang is judged by the sizes of all nodes. Constraints count for nothing: a gang that they
    keep out of every domain waits in vain, but no longer than it asked for. Cost: nothing for jobs without preferences;
    O(nodes) for each level and O(kinds of domains) for each distinct request, when nodes change."""

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self._hold_by_job: dict[JobId, LevelHold] = {}
        self._job_by_id: dict[JobId, Job] = {}  # as the world has them
        self._entered: list[Job] = []
        self._moments: list[tuple[float, JobId]] = []  # a heap: when a job may go on to its next step
        self._listed: set[tuple[float, JobId]] = set()  # what is in the heap: a job comes in many versions
        self._capacity: FreeCapacity | None = None
        self._version = -1
        self._run_s: RunS | None = None
        self._domains_by_level: dict[int, Counter[frozenset[tuple[int, int]]]] = {}
        self._most_by_request: dict[tuple[int, Hashable], int] = {}
        self._nested: dict[tuple[int, int], bool] = {}  # whether the domains of one level lie within another's

    def follow(self, gone: Iterable[Job], come: Iterable[Job]) -> None:
        """These jobs wait no longer, or in another version; these wait."""
        for job in gone:
            if self._job_by_id.pop(job.id, None) is not None:
                self._hold_by_job.pop(job.id, None)
        for job in come:
            if steps_of(job, self._config):
                self._job_by_id[job.id] = job
                self._entered.append(job)

    def of(self, job: JobId) -> LevelHold | None:
        """Return what the job waits for; None if it takes whatever it may have."""
        hold = self._hold_by_job.get(job)
        return None if hold is None or hold.until_s is None else hold

    def holding_out(self) -> list[JobId]:
        """Return all jobs that wait for something, in no order. O(jobs that prefer a level)."""
        return [job for job, hold in self._hold_by_job.items() if hold.until_s is not None]

    def pop_moved(
        self, now_s: float, since_s: Callable[[Job], float], run_s: RunS, capacity: FreeCapacity, version: int
    ) -> list[tuple[Job, str | None]]:
        """Return the jobs that are to wait for another level than before, as the world has them, and that level.

        A job that entered was queued with the level that it requires. `version`: of the nodes in `capacity`."""
        if not self._job_by_id:
            return []
        if self._version != version or self._capacity is not capacity:
            self._version, self._capacity = version, capacity
            self._domains_by_level, self._most_by_request, self._nested = {}, {}, {}
            asked = list(self._job_by_id.values())
        elif now_s < self._earliest_s() and not self._entered:
            return []
        else:
            asked = [*self._entered, *self._due(now_s)]
        self._entered = []
        moved: list[tuple[Job, str | None]] = []
        for job in asked:
            if self._job_by_id.get(job.id) is not job:
                continue  # another version of it came since
            before = self._hold_by_job.get(job.id)
            hold = hold_of(job, since_s(job), run_s(job), self._config, now_s, partial(self._holds, job))
            self._hold_by_job[job.id] = hold
            if hold.until_s is not None and hold.until_s < inf and (hold.until_s, job.id) not in self._listed:
                self._listed.add((hold.until_s, job.id))
                heappush(self._moments, (hold.until_s, job.id))
            if hold.level != (job.within if before is None else before.level):
                moved.append((job, hold.level))
        return moved

    def next_s(self, now_s: float) -> float | None:
        """Return when time alone lets a job go on to its next step, or None."""
        moment_s = self._earliest_s()
        return None if moment_s == inf else max(moment_s, now_s)

    def _earliest_s(self) -> float:
        """The first moment at which a job that still waits for it goes on; others are forgotten. O(1) on the mean."""
        while self._moments:
            moment_s, job = self._moments[0]
            hold = self._hold_by_job.get(job)
            if hold is not None and hold.until_s == moment_s:
                return moment_s
            self._listed.discard(heappop(self._moments))
        return inf

    def _due(self, now_s: float) -> list[Job]:
        due: list[Job] = []
        while self._earliest_s() <= now_s:
            moment = heappop(self._moments)
            self._listed.discard(moment)
            due.append(self._job_by_id[moment[1]])
        return due

    def _holds(self, job: Job, level: int) -> bool:
        if job.within is not None and not self._lies_within(level, job.within):
            return False
        key = (level, key_of_amount(job.request))
        most = self._most_by_request.get(key)
        if most is None:
            most = self._most_by_request[key] = self._most_when_empty(job, level)
        return most >= job.replicas

    def _lies_within(self, level: int, required: str) -> bool:
        """True if each domain of a level is part of one domain of the required level. Labels need not be nested."""
        wider, capacity = self._config.level_index(required), self._capacity
        assert capacity is not None
        if wider is None:
            return False
        nested = self._nested.get((level, wider))
        if nested is None:
            domain_by_node = capacity.levels[wider].domain_by_node
            around = [{domain_by_node[n] for n in nodes} for nodes in capacity.levels[level].nodes_by_domain.values()]
            nested = self._nested[level, wider] = all(len(one) == 1 and None not in one for one in around)
        return nested

    def _most_when_empty(self, job: Job, level: int) -> int:
        """Return how many ranks the best domain of a level holds when it is empty."""
        capacity = self._capacity
        assert capacity is not None
        kinds = self._domains_by_level.get(level)
        if kinds is None:
            whole = capacity.whole_amounts
            domains = capacity.levels[level].nodes_by_domain.values()
            kinds = Counter([frozenset(Counter([whole[number] for number in nodes]).items()) for nodes in domains])
            self._domains_by_level[level] = kinds
        times = {amount: job.request.times_in(capacity.amounts[amount]) for kind in kinds for amount, _ in kind}
        return max((sum(times[amount] * nodes for amount, nodes in kind) for kind in kinds), default=0)
