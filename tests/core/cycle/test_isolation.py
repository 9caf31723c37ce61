"""A job, node or quota that cannot be judged harms itself only: the others are decided as if it were not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from coda.compiled import is_compiled
from coda.cycle import CycleCache, CycleResult, CycleSnapshot, review_snapshot, run_cycle
from coda.model import NOTHING, Job, Resources, World
from coda.model.constraints import NodeConstraints, NodeTerm, Requirement
from coda.model.decision import WaitCode
from coda.model.job import Wish
from coda.model.world import Quota
from coda.placements import InFlight, PlacementAction
from coda.policy import PolicyConfig
from tests.builders import job, node, planned, resources, running

if is_compiled():
    pytest.skip("compiled classes refuse a value of another type where it is made", allow_module_level=True)

CONFIG = PolicyConfig()


class Poisoned(int):
    """An amount that raises wherever it is compared or divided: any error of our own in judging one job."""

    def _raise(self, _other: object) -> Any:
        raise ZeroDivisionError("poisoned")

    __le__ = __lt__ = __ge__ = __gt__ = __floordiv__ = __rfloordiv__ = __mul__ = _raise


def poisoned(bad: Job, **other: Any) -> Job:
    return replace(bad, request=replace_other(bad.request, other or {"example.com/x": Poisoned(3)}))


def replace_other(request: Resources, other: Mapping[str, Any]) -> Resources:
    return resources(gpus=request.gpus, cores=1, memory_gib=1, pods=1, **other)


def cycle(world: World, cache: CycleCache | None = None, config: PolicyConfig = CONFIG) -> CycleResult:
    return run_cycle(CycleSnapshot(world=world, epoch=1, now_s=100.0), config, cache or CycleCache())


NODES = (node("a"), node("b"))
HONEST = (job("one", gpus=8), job("two", gpus=8), job("three", gpus=8))


@pytest.mark.parametrize("policy", ["coda", "drf", "fifo-skip", "yarn-cs-preempt"])
@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(poisoned(job("bad")), id="raises when compared"),
        pytest.param(poisoned(job("bad"), x="many"), id="no number"),
        pytest.param(poisoned(job("bad"), x=[]), id="no key"),
        pytest.param(replace(job("bad"), request=cast("Resources", None)), id="no request"),
        pytest.param(replace(job("bad"), priority=cast("int", "high")), id="a priority that cannot be ordered"),
        pytest.param(replace(job("bad"), replicas=cast("int", "many")), id="no count"),
        pytest.param(
            job("bad", constraints=NodeConstraints(terms=(NodeTerm(labels=(cast("Requirement", 1),)),))), id="no term"
        ),
        pytest.param(replace(job("bad"), not_before_s=float("inf")), id="waits for ever"),
        pytest.param(job("bad", quota={"cpu": Poisoned(1)}), id="raises in a quota"),
        pytest.param(
            replace(running(job("bad"), "a"), wish=Wish(sequence=1, cores=cast("int", "x"), since_s=1, deadline_s=999)),
            id="a wish that is no number",
        ),
    ],
)
def test_one_job_that_cannot_be_judged_is_refused_alone(bad: Job, policy: str) -> None:
    config = PolicyConfig(policy=policy)
    quota = Quota(namespace="team", name="q", hard={"cpu": 10**9}, used={})
    cache = CycleCache()
    alone = cycle(World(nodes=NODES, jobs=HONEST, quotas=(quota,)), config=config)
    for jobs in ((bad, *HONEST), (*HONEST, bad), (bad, *HONEST)):
        result = cycle(World(nodes=NODES, jobs=jobs, quotas=(quota,)), cache, config)
        assert [start.job for start in result.decision.starts] == [start.job for start in alone.decision.starts]
        told = {refusal.job: refusal.reason for refusal in result.decision.refusals}
        waiting = {refusal.job for refusal in alone.decision.refusals}
        assert waiting <= told.keys() <= {*waiting, "team/bad"}
        if bad.wish is None:
            assert told[bad.id].code in (WaitCode.UNDECIDABLE, WaitCode.BACKING_OFF)
            assert result.gpus_wanted >= 8


def test_what_is_left_out_is_told_by_every_cycle_until_it_changes() -> None:
    cache, bad = CycleCache(), replace(node("bad"), allocatable=cast("Resources", None))
    for _ in range(3):
        apart = cycle(World(nodes=(*NODES, bad), jobs=HONEST), cache).apart
        assert apart is not None
        assert (apart.nodes, apart.jobs) == (("bad",), ())
        assert "Traceback" in apart.traceback
    assert cycle(World(nodes=(*NODES, node("bad")), jobs=HONEST), cache).apart is None


def test_the_fault_is_reported_once_with_its_traceback() -> None:
    cache = CycleCache()
    world = World(nodes=NODES, jobs=(poisoned(job("bad")), *HONEST))
    first, second = cycle(world, cache), cycle(world, cache)
    assert [fault.jobs for fault in first.decision.faults] == [("team/bad",)]
    assert "poisoned" in first.decision.faults[0].traceback
    assert second.decision.faults == ()
    (reason,) = [refusal.reason for refusal in second.decision.refusals if refusal.job == "team/bad"]
    assert reason.code is WaitCode.UNDECIDABLE
    assert "example.com/x" in reason.message, "the field that is out of the ordinary"


class Late(int):
    """A priority that raises from its use number `limit` on."""

    limit = 10**9
    uses = 0

    def _use(self, *_: Any) -> Any:
        Late.uses += 1
        if Late.uses > Late.limit:
            raise ZeroDivisionError("late")
        return 0

    __neg__ = __le__ = __lt__ = __ge__ = __gt__ = _use


def test_what_only_the_decision_beside_pods_in_flight_cannot_judge_is_left_out_alone() -> None:
    """The head of the queue is committed beside a steady stream of pods all the same."""
    nodes = (node("a"), node("b"))
    stream = (InFlight(uid="f", request=resources(gpus=1, cores=1, memory_gib=1, pods=1), nodes=("a", "b")),)
    jobs = (job("head", replicas=2, gpus=8), replace(job("bad", gpus=8), priority=Late(0)))

    def passed_by(for_s: float) -> CycleResult:
        world = World(nodes=nodes, jobs=jobs)
        return run_cycle(
            CycleSnapshot(world=world, foreign=stream, epoch=1, now_s=100.0, in_flight_for_s=for_s),
            CONFIG,
            CycleCache(),
        )

    Late.limit, Late.uses = 10**9, 0
    assert passed_by(0.0).decision.starts == ()
    Late.limit, Late.uses = Late.uses, 0  # the first decision is fine, and what comes after it is not
    assert Late.limit > 0
    result = passed_by(60.0)
    assert [start.job for start in result.decision.starts] == ["team/head"]
    assert [fault.jobs for fault in result.decision.faults] == [("team/bad",)]
    assert [(refusal.job, refusal.reason.code) for refusal in result.decision.refusals] == [
        ("team/bad", WaitCode.UNDECIDABLE)
    ]
    assert dict(result.jobs_by_code) == {WaitCode.UNDECIDABLE: 1}


def test_an_edit_lets_it_be_judged_again() -> None:
    cache = CycleCache()
    bad = replace(job("bad"), request=cast("Resources", None))
    cycle(World(nodes=NODES, jobs=(bad,)), cache)
    mended = cycle(World(nodes=NODES, jobs=(replace(job("bad"), generation=2),)), cache)
    assert [start.job for start in mended.decision.starts] == ["team/bad"]


def test_many_that_cannot_be_judged_are_all_refused() -> None:
    bad = [replace(job(f"bad-{number}"), request=cast("Resources", None)) for number in range(40)]
    result = cycle(World(nodes=NODES, jobs=(*bad[:20], *HONEST, *bad[20:])))
    assert len(result.decision.starts) == 2
    assert result.jobs_by_code[WaitCode.UNDECIDABLE] == 40


def test_the_nodes_of_a_placed_job_that_cannot_be_judged_are_left_alone() -> None:
    """What it withholds cannot be counted any more, so nobody else may use its nodes."""
    bad = replace(planned(job("bad", gpus=8), "a"), request=cast("Resources", None))
    result = cycle(World(nodes=NODES, jobs=(bad, *HONEST)))
    assert [start.nodes for start in result.decision.starts] == [("b",)]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(replace(node("z"), allocatable=cast("Resources", None)), id="no size"),
        pytest.param(replace(node("z"), labels=cast("dict[str, str]", None)), id="no labels"),
        pytest.param(replace(node("z"), allocatable=resources(gpus=8, cores=8, pods=9, x=Poisoned(1))), id="poisoned"),
    ],
)
def test_one_node_that_cannot_be_judged_is_left_out(bad: Any) -> None:
    asks = job("asks", gpus=8, other={"x": 1})
    for jobs in (HONEST, (asks, *HONEST)):
        result = cycle(World(nodes=(*NODES, bad), jobs=jobs))
        assert len(result.decision.starts) == 2


def test_one_quota_that_cannot_be_judged_is_left_to_the_api_server() -> None:
    bad = Quota(namespace="team", name="q", hard={"cpu": cast("int", "x")}, used={})
    assert len(cycle(World(nodes=NODES, jobs=HONEST, quotas=(bad,))).decision.starts) == 2


def test_one_placement_that_cannot_be_reviewed_holds_up_no_other() -> None:
    bad = replace(planned(job("bad"), "a"), request=cast("Resources", None))
    good = planned(job("good"), "b")
    world = World(nodes=NODES, jobs=(bad, good), used={"b": NOTHING})
    reviews = review_snapshot(CycleSnapshot(world=world, epoch=1, now_s=1.0))
    assert [(review.job.id, review.action) for review in reviews] == [("team/good", PlacementAction.RELEASE)]
