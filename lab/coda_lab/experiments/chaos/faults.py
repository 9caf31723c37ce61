"""Carries out the faults on a cluster, and measures how long the system takes to make progress again.

| hit | the clock starts at | and stops at |
|---|---|---|
| planner (kill, stop, drop, reset) | the fault's beginning | the first gang pod bound under the new leader |
| planner (delay) | the fault's end | the next gang pod bound |
| operator (kill, stop, drop, reset) | the fault's beginning | the first status written under the new leader |
| operator (delay) | the fault's end | its next status |
| standby of either | the kill, or the fault's end | it answers that it is ready |
| kube-scheduler | the kill, or the fault's end | the next gang pod bound (after a kill: by the new process) |
| etcd, API server | the end of the outage: the API server answers that it is ready | the next gang pod bound |

If nobody could take over during a fault (the API server was away, too), a leader that renews its Lease afterwards
counts as the new one. In a salvo nobody is charged for the delay of the other fault: a clock starts again at the end of
the other fault, if that came before it stopped. For the operator that is when it writes again: no pod of a new gang
exists before.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from coda_kube.objects.names import OPERATOR_LEASE, PLANNER_LEASE
from coda_lab.experiments.chaos.progress_signs import Sign, Signs, What
from coda_lab.experiments.chaos.proxy import Gate
from coda_lab.experiments.chaos.schedule import LEADERS, STANDBYS, STORAGE, Fault, Kind, Target
from coda_lab.local.cluster import LocalCluster, answers_ok
from coda_lab.local.restarts import Restarter
from coda_lab.spec import EXTENDER, OPERATOR

BUDGET_S: Final = 15.0  # design 8: planner fail-over, from SIGKILL or the end of an API outage
BUDGETED: Final = (Target.PLANNER, *STORAGE)
GIVE_UP_S: Final = 120.0  # after this long without progress the system will not recover by itself
_POLL_S: Final = 0.05  # a part that comes back says so only when asked
API_SERVER: Final = Target.API_SERVER.value
LEASE_BY_KIND: Final = {OPERATOR: OPERATOR_LEASE, EXTENDER: PLANNER_LEASE}
KIND_BY_TARGET: Final = {
    Target.OPERATOR: OPERATOR,
    Target.STANDBY_OPERATOR: OPERATOR,
    Target.PLANNER: EXTENDER,
    Target.STANDBY_PLANNER: EXTENDER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A fault that happened. Times are seconds since 1970; `recovered_s` None: no progress within GIVE_UP_S."""

    fault: Fault
    part: str
    began_s: float
    ended_s: float
    clock_s: float  # when its clock started
    recovered_s: float | None
    budget_s: float = BUDGET_S

    @property
    def recovery_s(self) -> float | None:
        """How long the system took; None if it never made progress again."""
        return None if self.recovered_s is None else max(0.0, self.recovered_s - self.clock_s)

    @property
    def over_budget(self) -> bool:
        """True for a fail-over that took longer than allowed, and for each recovery that never came."""
        took_s = self.recovery_s
        return took_s is None or (self.fault.target in BUDGETED and took_s > self.budget_s)


def freed_of_others(salvo: tuple[Struck, ...]) -> tuple[Struck, ...]:
    """Start each clock again at the ends of other faults that came before it stopped."""
    freed = []
    for struck in salvo:
        ends_s = [_held_up_until_s(other) for other in salvo if other is not struck]
        before_s = [end_s for end_s in ends_s if struck.recovered_s is None or end_s <= struck.recovered_s]
        freed.append(replace(struck, clock_s=max([struck.clock_s, *before_s])))
    return tuple(freed)


def _held_up_until_s(struck: Struck) -> float:
    if struck.fault.target is Target.OPERATOR and struck.recovered_s is not None:
        return max(struck.ended_s, struck.recovered_s)
    return struck.ended_s


class Striker:
    """Applies faults to the parts of one cluster. `tell` receives each fault and the time of its recovery."""

    def __init__(
        self,
        cluster: LocalCluster,
        restarter: Restarter,
        gates: dict[str, Gate],
        signs: Signs,
        after_outage: Callable[[], Awaitable[None]],
        tell: Callable[[Fault, str], None],
        *,
        budget_s: float = BUDGET_S,
    ) -> None:
        self._cluster = cluster
        self._budget_s = budget_s
        self._restarter = restarter
        self._gates = gates
        self._signs = signs
        self._after_outage = after_outage
        self._tell = tell
        self._now = time.time

    async def strike(self, salvo: tuple[Fault, ...]) -> tuple[Struck, ...]:
        """Carry out one salvo, and return once the system has made progress again after all of it."""
        async with asyncio.TaskGroup() as tasks:
            struck, wait_s = [], 0.0
            for fault in salvo:
                wait_s += fault.pause_s
                struck.append(tasks.create_task(self._strike_after(wait_s, fault)))
        done = freed_of_others(tuple(task.result() for task in struck))
        for each in done:
            took_s = each.recovery_s
            said = f"no progress within {GIVE_UP_S:.0f} s" if took_s is None else f"progress after {took_s:.1f} s"
            over = f", which is over the budget of {each.budget_s:g} s" if each.over_budget else ""
            self._tell(each.fault, said + over)
        return done

    async def _strike_after(self, wait_s: float, fault: Fault) -> Struck:
        await asyncio.sleep(wait_s)
        part = self._part_of(fault.target)
        while not self._cluster.is_running(part):  # it ended by itself and is about to be started again
            await asyncio.sleep(_POLL_S)
        self._tell(fault, f"{fault.kind.value} {part} for {fault.lasts_s:g} s")
        began_s = self._now()
        async with asyncio.TaskGroup() as tasks:
            over: asyncio.Future[float] = asyncio.get_running_loop().create_future()
            recovering = tasks.create_task(self._recovered(fault, part, over))
            await self._inflict(fault, part)
            over.set_result(self._now())
        ended_s = over.result()
        silent = fault.kind is Kind.KILL or (fault.target in LEADERS and fault.kind is not Kind.DELAY)
        clock_s = began_s if silent and fault.target not in STORAGE else ended_s
        return Struck(
            fault=fault,
            part=part,
            began_s=began_s,
            ended_s=ended_s,
            clock_s=clock_s,
            recovered_s=recovering.result(),
            budget_s=self._budget_s,
        )

    def _part_of(self, target: Target) -> str:
        kind = KIND_BY_TARGET.get(target)
        if kind is None:
            return str(target.value)
        holder = self._signs.holder_by_lease[LEASE_BY_KIND[kind]]
        replicas = [name for name in self._cluster.part_by_name if name.startswith(f"{kind}-")]
        leading = [name for name in replicas if holder.startswith(f"coda-{name}")]  # a suffix tells its starts apart
        others = [name for name in replicas if name not in leading]
        return (others if target in STANDBYS else leading)[0]

    # --- the fault ----------------------------------------------------------------------------------------------------

    async def _inflict(self, fault: Fault, part: str) -> None:
        """Return at the fault's end: the part is started again, continued, or connected."""
        if fault.kind is Kind.KILL:
            with self._restarter.leaving(part):
                await self._cluster.kill(part, signal.SIGKILL)
                await asyncio.sleep(fault.lasts_s)
                self._cluster.launch(part)
        elif fault.kind is Kind.STOP:
            await self._cluster.kill(part, signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.lasts_s)
            finally:
                await self._cluster.kill(part, signal.SIGCONT)
        else:
            self._gates[part].cut(fault.kind, delay_s=fault.delay_s)
            await asyncio.sleep(fault.lasts_s)
            self._gates[part].heal()
        if fault.target in STORAGE:
            await self._until_ready(API_SERVER)
            await self._after_outage()

    async def _until_ready(self, part: str) -> None:
        url = self._cluster.part_by_name[part].ready_url
        assert url is not None
        while not await answers_ok(url):
            await asyncio.sleep(_POLL_S)

    # --- the recovery -------------------------------------------------------------------------------------------------

    async def _recovered(self, fault: Fault, part: str, over: asyncio.Future[float]) -> float | None:
        """The time at which the system made progress again; see the module."""
        try:
            async with asyncio.timeout(GIVE_UP_S + fault.lasts_s):
                return await self._progress(fault, part, over)
        except TimeoutError:
            return None

    async def _progress(self, fault: Fault, part: str, over: asyncio.Future[float]) -> float:
        took_over_s = None
        if fault.kind is not Kind.DELAY and fault.target in LEADERS:
            took_over_s = (await self._new_leader(fault, over)).seen_s
        if fault.target in STANDBYS:
            await asyncio.shield(over)
            await self._until_ready(part)
            return self._now()
        what = What.WROTE if fault.target is Target.OPERATOR else What.BOUND
        after_s = took_over_s if took_over_s is not None else await asyncio.shield(over)
        return (await self._signs.next_after(what, after_s)).seen_s

    async def _new_leader(self, fault: Fault, over: asyncio.Future[float]) -> Sign:
        lease = LEASE_BY_KIND[KIND_BY_TARGET[fault.target]]

        def leads(sign: Sign) -> bool:
            if sign.subject != lease or sign.what not in (What.HOLDER, What.RENEWED):
                return False
            survived = fault.kind is not Kind.KILL and over.done() and sign.seen_s >= over.result()
            return sign.what is What.HOLDER or survived

        return await self._signs.next(leads)
