"""How much time the demands of one user may take from the planner.

To judge a demand like others takes microseconds. One with a node selector or affinity of its own takes milliseconds,
the first time and whenever nodes come or go; one user can submit hundreds. So two rules hold:

- A *costly* demand is judged from a purse that fills by a fifth of the time. It takes more than 10 ms, and more than
  twice what a demand without any constraints takes here: on a slow machine none is costly for that alone.
- A namespace has a slice of each cycle for its other demands. What it has no time for is tried in the next cycles, and
  from the purse as well.

Besides, only so many CPU jobs start in one cycle: a start costs nothing, and thousands of them take seconds.

From the purse the namespace goes first that was served least recently, then the demand that was tried least recently.
So each is delayed, and none starved. Time is measured by a clock that the caller gives, best of the processor's time of
this thread: then neighbours on a machine make no demand costly. A simulator gives none, and every demand is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from coda.cache.gang_class import GangClass

Clock = Callable[[], float]
"""Seconds that only grow."""

COSTLY_S: Final = 0.010
COSTLY_TIMES: Final = 2.0  # as a demand without constraints, or more
SHARE: Final = 0.2  # of all time, for what the purse pays
PURSE_S: Final = 0.1  # that it holds at most
CPU_STARTS: Final = 400
"""CPU jobs that start in one cycle; others do in the next ones. Our choice: twice what is written of one cycle, since
some cannot be written. A Job of ten thousand pods then holds up gangs for a tenth of a second and not for seconds."""

SLICE_S: Final = 0.05  # of a cycle, for each namespace. Our choice: a cycle of 10 000 waiting jobs takes as long
ALONE_S: Final = 1.0  # the same while jobs of one namespace only wait: it delays nobody else
AGAIN_S: Final = 1.0  # a demand that was judged on these nodes before waits as long for another cause to try it again
_LEAST_S: Final = 0.001  # that a class is expected to take if nobody knows
_NAMESPACES: Final = 10_000  # that are remembered
_PURSE: Final = "/purse"
_NOBODY: Final = "/nobody"


class JudgingBudget:
    """What judging has cost, and which classes there is time for in this cycle."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.reserved_for: set[GangClass] = set()  # nodes are reserved for these in this cycle
        self._was_reserved_for: set[GangClass] = set()  # in the last one: they are always judged, or lose their nodes
        self._costly_s = COSTLY_S
        self._now_s = 0.0
        self._purse_s = PURSE_S  # below 0: a debt
        self._since_by_class: dict[GangClass, float] = {}  # left out: since when, or when it was tried last
        self._picked: set[GangClass] = set()  # of them, what the purse pays in this cycle
        self._payer_by_class: dict[GangClass, str] = {}  # in this cycle: a namespace, `_PURSE` or `_NOBODY`
        self._cost_by_class: dict[GangClass, float] = {}  # its longest question in this cycle
        self._spent_s: dict[str, float] = {}  # of each namespace's slice, in this cycle
        self._first_s_by_namespace: dict[str, float] = {}  # what its last class took that was new
        self._cpu_starts = 0  # in this cycle
        self._turn = 0
        self._turn_by_namespace: dict[str, int] = {}  # when the purse last paid for it
        self._is_alone: bool | None = None  # one namespace waits; None: not known yet
        self._waiting: Iterable[GangClass] = ()

    def measure_plain(self, judge_plain: Callable[[], object]) -> None:
        """The nodes are indexed again: find what a demand without constraints costs."""
        began_s = self.clock()
        judge_plain()
        self._costly_s = max(COSTLY_S, COSTLY_TIMES * (self.clock() - began_s))

    def begin(self, waiting: Iterable[GangClass], now_s: float) -> None:
        """A cycle begins, in which these classes wait. `now_s`: as `decide` has it. O(classes left out, log)."""
        self._settle()
        self._purse_s = min(PURSE_S, self._purse_s + SHARE * max(0.0, now_s - self._now_s))
        self._now_s = now_s
        self._payer_by_class.clear()
        self._spent_s.clear()
        self._cpu_starts = 0
        self._waiting, self._is_alone = waiting, None
        self._was_reserved_for, self.reserved_for = self.reserved_for, set()
        self._pick()

    def admits(self, gang_class: GangClass) -> bool:
        """True if there is time for the class in this cycle. The answer stays the same until the next `begin`."""
        payer = self._payer_by_class.get(gang_class)
        if payer is None:
            payer = self._payer_by_class[gang_class] = self._payer(gang_class)
            if payer == _NOBODY:
                self._since_by_class.setdefault(gang_class, self._now_s)
        return payer != _NOBODY

    def note_start(self, gang_class: GangClass) -> None:
        """A job of the class starts in this cycle."""
        if gang_class.job.request.gpus == 0:
            self._cpu_starts += 1

    @property
    def many_cpu_jobs_start(self) -> bool:
        """True if no more CPU jobs are to start in this cycle."""
        return self._cpu_starts >= CPU_STARTS

    def charge(self, gang_class: GangClass, cost_s: float) -> None:
        """To answer one question about a class that was admitted took this long."""
        longest_s = self._cost_by_class[gang_class] = max(cost_s, self._cost_by_class.get(gang_class, 0.0))
        if gang_class.cost.is_first:
            self._first_s_by_namespace[gang_class.job.namespace] = longest_s
        payer = self._payer_by_class[gang_class]
        if payer == _PURSE:
            self._purse_s -= cost_s
        else:
            self._spent_s[payer] = self._spent_s.get(payer, 0.0) + cost_s

    def left_out_s(self, gang_class: GangClass) -> float | None:
        """How long the class waits for its turn; None if it is judged in this cycle."""
        if self._payer_by_class.get(gang_class) != _NOBODY:
            return None
        return self._now_s - self._since_by_class[gang_class]

    def is_costly(self, gang_class: GangClass) -> bool:
        """True if judging it now would take long, as far as known."""
        return self._expected_s(gang_class) > self._costly_s

    def end(self) -> float | None:
        """The cycle ends. Return when the next one should be for the sake of what was left out; None: nothing was."""
        self._settle()
        due_s = [self._due_s(one, since_s) for one, since_s in self._since_by_class.items()]
        if self.many_cpu_jobs_start:
            due_s.append(self._now_s + AGAIN_S)  # what was written of this cycle begins another one before
        return min(due_s, default=None)

    def _due_s(self, gang_class: GangClass, since_s: float) -> float:
        due_s = self._now_s
        if self.is_costly(gang_class):
            due_s += max(0.0, (COSTLY_S - self._purse_s) / SHARE)
        return due_s if gang_class.cost.is_first else max(due_s, since_s + AGAIN_S)

    def _payer(self, gang_class: GangClass) -> str:
        """Who pays for judging the class now: the purse, a namespace with a job of it from its slice, or nobody.

        O(1); O(jobs of the class) if the first job's namespace has used its slice up."""
        namespace, spent_s = gang_class.job.namespace, self._spent_s
        if gang_class in self._was_reserved_for:
            return namespace
        if gang_class in self._picked and self._purse_s > 0:
            return _PURSE
        if self.is_costly(gang_class):
            return _NOBODY
        if spent_s.get(namespace, 0.0) < SLICE_S:
            return namespace
        names = {queued.job.namespace for queued in gang_class.queued_jobs}
        least_s, namespace = min((spent_s.get(name, 0.0), name) for name in names)
        return namespace if least_s < (ALONE_S if self._has_one_namespace() else SLICE_S) else _NOBODY

    def _has_one_namespace(self) -> bool:
        """O(waiting jobs), once in a cycle in which a slice was used up."""
        if self._is_alone is None:
            names = {queued.job.namespace for gang_class in self._waiting for queued in gang_class.queued_jobs}
            self._is_alone = len(names) <= 1
        return self._is_alone

    def _expected_s(self, gang_class: GangClass) -> float:
        cost = gang_class.cost
        if not cost.is_first:
            return cost.later_s
        if cost.first_s is not None:
            return cost.first_s
        return self._first_s_by_namespace.get(gang_class.job.namespace, 0.0)

    def _pick(self) -> None:
        """Choose what the purse pays in this cycle: of the namespaces in turns, each time what waits longest."""
        lines: dict[str, list[tuple[float, int, GangClass]]] = {}
        for place, (gang_class, since_s) in enumerate(self._since_by_class.items()):
            if gang_class.queued_jobs:
                lines.setdefault(gang_class.job.namespace, []).append((since_s, place, gang_class))
        for line in lines.values():
            line.sort(reverse=True)
        turns = [(self._turn_by_namespace.get(namespace, 0), namespace) for namespace in lines]
        heapify(turns)
        self._picked, left_s = set(), self._purse_s
        while turns and left_s > 0:
            _, namespace = heappop(turns)
            gang_class = lines[namespace].pop()[2]
            self._picked.add(gang_class)
            left_s -= max(self._expected_s(gang_class), _LEAST_S)
            self._turn += 1
            self._turn_by_namespace[namespace] = self._turn
            if lines[namespace]:
                heappush(turns, (self._turn, namespace))

    def _settle(self) -> None:
        """Remember what judging each class has cost, and what was left out."""
        for gang_class, cost_s in self._cost_by_class.items():
            if cost_s > self._costly_s and self._payer_by_class[gang_class] != _PURSE:
                self._purse_s -= cost_s  # nobody knew it before
            cost = gang_class.cost
            if cost.is_first:
                cost.first_s, cost.is_first = cost_s, False
            else:
                cost.later_s = cost_s
        self._cost_by_class.clear()
        payer_by_class, since_by_class = self._payer_by_class, self._since_by_class
        self._since_by_class = {
            one: since_s for one, since_s in since_by_class.items() if payer_by_class.get(one) == _NOBODY
        }
        for by_namespace in (self._first_s_by_namespace, self._turn_by_namespace):
            if len(by_namespace) > _NAMESPACES:
                by_namespace.clear()
