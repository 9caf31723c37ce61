"""A demand that takes long to judge delays itself, and no honest job: costs are made up by a clock of the test."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.compiled import is_compiled
from coda.cycle import CycleCache, CycleResult, CycleSnapshot, run_cycle
from coda.model import Job, JobId, World
from coda.model.constraints import NodeConstraints, NodeTerm, Requirement
from coda.model.decision import WaitCode
from coda.policy import PolicyConfig
from tests.builders import HOST_LABEL, job, node, running

pytestmark = pytest.mark.heavy

if is_compiled():
    pytest.skip(
        "compiled code reads the items of a tuple itself, so that no term can take time", allow_module_level=True
    )

NODES = tuple(node(f"n{number}") for number in range(4))
BUSY = tuple(running(job(f"r{number}", gpus=8), f"n{number}") for number in range(4))
USED = {f"n{number}": each.request for number, each in enumerate(BUSY)}


@dataclass
class Clock:
    """What judging has cost. `tick_s`: the cost of any question, as on a slow machine."""

    now_s: float = 0.0
    tick_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


class Terms(tuple[NodeTerm, ...]):
    """Terms that take time each time they are compared with the nodes."""

    clock: Clock
    cost_s: float

    def __iter__(self) -> Iterator[NodeTerm]:
        self.clock.now_s += self.cost_s
        return super().__iter__()


@dataclass
class Planner:
    """Cycles of one planner, as the live one asks for them: each takes as long as it cost, and the next one waits."""

    clock: Clock = field(default_factory=Clock)
    now_s: float = 1000.0
    jobs: dict[JobId, Job] = field(default_factory=dict)
    config: PolicyConfig = field(default_factory=PolicyConfig)
    cycle_s: float = 0.0  # what the last cycle cost
    judged: dict[JobId, float] = field(default_factory=dict)  # when each job got a reason of its own
    result: CycleResult | None = None

    def __post_init__(self) -> None:
        self.cache = CycleCache(self.clock)

    def submit(self, *jobs: Job) -> None:
        self.jobs |= {each.id: each for each in jobs}

    def cycle(self, *, full: bool = True) -> CycleResult:
        before_s = self.clock.now_s
        placed, used = (BUSY, USED) if full else ((), {})
        world = World(nodes=NODES, jobs=(*placed, *self.jobs.values()), used=used)
        snapshot = CycleSnapshot(world=world, epoch=1, now_s=self.now_s)
        result = self.result = run_cycle(snapshot, self.config, self.cache)
        self.cycle_s = self.clock.now_s - before_s
        self.now_s += self.cycle_s + 0.003
        for refusal in result.decision.refusals:
            if refusal.code is not WaitCode.JUDGED_IN_TURNS:
                self.judged.setdefault(refusal.job, self.now_s)
        return result

    def cycles(self, until_s: float) -> Iterator[CycleResult]:
        """As the live planner: a cycle when the last one asked for it, and one in each second."""
        while self.now_s < until_s:
            result = self.cycle()
            yield result
            wake_s = self.now_s + 1.0 if result.wake_s is None else result.wake_s
            self.now_s = max(self.now_s, min(wake_s, self.now_s + 1.0))

    def costly(self, name: str, cost_s: float, namespace: str = "mallory", gpus: int = 8) -> Job:
        """A job that nobody has equal terms with. It may go to every node."""
        terms = Terms((NodeTerm(labels=(Requirement(key=HOST_LABEL, operator="NotIn", values=(name,)),)),))
        terms.clock, terms.cost_s = self.clock, cost_s
        return job(name, namespace=namespace, gpus=gpus, constraints=NodeConstraints(terms=terms))


def reason_codes(result: CycleResult) -> dict[str, WaitCode]:
    return {refusal.job: refusal.code for refusal in result.decision.refusals}


def names(jobs: Iterable[Job]) -> set[JobId]:
    return {each.id for each in jobs}


def test_many_costly_demands_take_a_fifth_of_the_time_and_none_is_starved() -> None:
    planner = Planner()
    costly = [planner.costly(f"c{number}", 0.019) for number in range(200)]
    planner.submit(*costly, job("honest", gpus=8))
    began_s, spent_s = planner.now_s, 0.0
    for _ in planner.cycles(until_s=began_s + 30.0):
        assert planner.cycle_s <= 0.2, "an honest job waits for it"
        spent_s += planner.cycle_s
    assert spent_s <= 0.2 * 30.0 + 0.25, "a fifth of the time, and what the purse and a slice hold at first"
    assert names(costly) <= planner.judged.keys()
    assert max(planner.judged.values()) <= began_s + 200 * 0.019 / 0.2 + 2.0


def test_a_costly_demand_says_that_it_is_tried_in_turns() -> None:
    planner = Planner()
    planner.submit(*(planner.costly(f"c{number}", 0.019) for number in range(200)), job("honest", gpus=8))
    refusals = planner.cycle().decision.refusals
    late = [refusal for refusal in refusals if refusal.code is WaitCode.JUDGED_IN_TURNS]
    assert len(late) > 150
    assert {refusal.message for refusal in late} == {
        "to compare what it asks for with the nodes takes long, so it is tried less often, in turns with others"
        " like it; fewer terms and values in its node affinity help"
    }
    assert reason_codes(planner.cycle())["team/honest"] is WaitCode.INSUFFICIENT_GPUS


def test_an_honest_job_starts_at_once_beside_them() -> None:
    planner = Planner()
    planner.submit(*(planner.costly(f"c{number}", 0.019, gpus=9) for number in range(200)))
    planner.cycle(full=False)
    planner.submit(job("honest", gpus=8))
    result = planner.cycle(full=False)
    assert [start.job for start in result.decision.starts] == ["team/honest"]
    assert planner.cycle_s <= 0.2


def test_many_demands_that_are_costly_only_together_are_judged_in_slices() -> None:
    planner = Planner()
    many = [planner.costly(f"c{number}", 0.009) for number in range(200)]
    planner.submit(*many, job("honest", gpus=8))
    began_s = planner.now_s
    for result in planner.cycles(until_s=began_s + 4.0):
        assert planner.cycle_s <= 0.2
        assert reason_codes(result)["team/honest"] is WaitCode.INSUFFICIENT_GPUS
        late = [refusal.message for refusal in result.decision.refusals if refusal.code is WaitCode.JUDGED_IN_TURNS]
        assert all("its namespace" in message for message in late)
    assert names(many) <= planner.judged.keys()
    assert result.wake_s is None, "all are judged: the planner rests"


def test_a_namespace_that_waits_alone_is_judged_without_pauses() -> None:
    planner = Planner()
    planner.submit(*(planner.costly(f"c{number}", 0.009) for number in range(100)))
    assert WaitCode.JUDGED_IN_TURNS not in reason_codes(planner.cycle()).values()
    planner.submit(*(planner.costly(f"d{number}", 0.009) for number in range(1000)))
    planner.cycle()
    assert planner.cycle_s <= 1.5, "a job of another namespace may come at any moment"


def test_new_demands_in_every_cycle_take_no_more() -> None:
    """Their cost is not known yet: it is taken for that of the last new one of the namespace."""
    planner = Planner()
    planner.submit(job("honest", gpus=8))
    began_s, spent_s = planner.now_s, 0.0
    for number, _ in enumerate(planner.cycles(until_s=began_s + 8.0)):
        spent_s += planner.cycle_s
        planner.jobs = {name: each for name, each in planner.jobs.items() if each.namespace == "team"}
        planner.submit(*(planner.costly(f"c{number}-{each}", 0.019) for each in range(20)))
    assert spent_s <= 0.2 * 8.0 + 0.25


def test_on_a_slow_machine_no_demand_is_costly_for_that() -> None:
    planner = Planner(clock=Clock(tick_s=0.015))
    honest = [job(f"j{number}", namespace=f"team-{number % 5}", gpus=8, replicas=1 + number) for number in range(20)]
    planner.submit(*honest)
    began_s = planner.now_s
    for result in planner.cycles(until_s=began_s + 10.0):
        late = [refusal.message for refusal in result.decision.refusals if refusal.code is WaitCode.JUDGED_IN_TURNS]
        assert all("its namespace" in message for message in late)
    assert names(honest) <= planner.judged.keys()
    assert result.wake_s is None


def test_each_namespace_has_its_turn_at_the_purse() -> None:
    planner = Planner()
    planner.submit(*(planner.costly(f"c{number}", 0.050) for number in range(200)))
    for _ in planner.cycles(until_s=planner.now_s + 3.0):
        pass
    planner.submit(planner.costly("own", 0.050, namespace="team"))
    began_s = planner.now_s
    for _ in planner.cycles(until_s=began_s + 2.0):
        pass
    assert planner.judged[JobId("team/own")] <= began_s + 1.0, "50 s of others' work wait before it"


def test_a_class_that_two_namespaces_share_is_judged_when_one_of_them_has_time() -> None:
    planner = Planner()
    planner.submit(*(planner.costly(f"c{number}", 0.009) for number in range(100)))
    planner.submit(job("twin", namespace="mallory", gpus=8), job("honest", gpus=8))
    result = planner.cycle()
    assert reason_codes(result)["team/honest"] is WaitCode.INSUFFICIENT_GPUS


def test_nodes_that_all_change_are_not_followed_for_each_of_many_demands() -> None:
    """Users make the demands: what following them costs has a bound. Beyond it they are judged again, in slices."""
    nodes = tuple(node(f"n{number:03}") for number in range(600))
    cordoned = tuple(replace(each, schedulable=False) for each in nodes)
    terms = tuple(
        NodeTerm(labels=(Requirement(key="x", operator="NotIn", values=(str(each),)),)) for each in range(400)
    )
    many = tuple(
        job(f"c{number}", namespace="mallory", gpus=9, constraints=NodeConstraints(terms=(term,)))
        for number, term in enumerate(terms)
    )
    cache, config = CycleCache(time.thread_time), PolicyConfig()
    world = World(nodes=nodes, jobs=(*many, job("honest", gpus=8)))
    for now_s in map(float, range(1000)):
        if run_cycle(CycleSnapshot(world=world, epoch=1, now_s=now_s), config, cache).wake_s is None:
            break
    began_s = time.thread_time()
    run_cycle(CycleSnapshot(world=replace(world, nodes=cordoned), epoch=1, now_s=now_s), config, cache)
    assert time.thread_time() - began_s < 0.5


def test_starts_cost_a_class_nothing() -> None:
    """A thousand jobs that start, or a gang of 4096 ranks, take time too, and nobody is to wait for that."""
    planner = Planner(clock=Clock(tick_s=0.008))
    planner.submit(*(job(f"j{number:02}", gpus=1) for number in range(32)), job("other", namespace="x", gpus=8))
    result = planner.cycle(full=False)
    assert len(result.decision.starts) == 32
    planner.jobs.clear()
    planner.submit(*(job(f"k{number:02}", gpus=1) for number in range(32)))
    assert len(planner.cycle(full=False).decision.starts) == 32


def test_a_job_that_nodes_are_kept_for_is_judged_in_every_cycle() -> None:
    """Without it in one cycle, others would take its nodes, again and again."""
    planner = Planner(config=PolicyConfig(promise_patience_s=10.0, promise_price=1.0))
    planner.submit(planner.costly("large", 0.5, namespace="team", gpus=8))
    large = planner.jobs[JobId("team/large")]
    planner.submit(replace(large, replicas=4))
    for _ in range(3):
        planner.cycle()
    assert planner.cache.planner.budget is not None
    for _ in range(3):
        planner.now_s += 0.01
        planner.cycle()
        assert planner.cache.planner.budget.reserved_for


@given(
    costs_s=st.lists(st.sampled_from((0.0, 0.001, 0.009, 0.019, 0.3)), min_size=1, max_size=12),
    namespaces=st.integers(1, 3),
    tick_s=st.sampled_from((0.0, 0.0, 0.004)),
    full=st.booleans(),
)
def test_in_the_end_all_are_judged_as_without_a_clock(
    costs_s: list[float], namespaces: int, tick_s: float, full: bool
) -> None:
    planner = Planner(clock=Clock(tick_s=tick_s))
    planner.submit(
        *(
            planner.costly(f"c{number}", cost_s, namespace=f"team-{number % namespaces}", gpus=9 - number % 2 * full)
            for number, cost_s in enumerate(costs_s)
        )
    )
    for _ in range(60):
        result = planner.cycle()
        if result.wake_s is None:
            break
        planner.now_s = max(planner.now_s, result.wake_s)
    world = World(nodes=NODES, jobs=(*BUSY, *planner.jobs.values()), used=USED)
    expected = run_cycle(CycleSnapshot(world=world, epoch=1, now_s=1000.0), planner.config, CycleCache())
    assert result.decision == expected.decision
