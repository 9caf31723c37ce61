"""The legal changes of phase and the promises of every step, over random situations."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from coda.lifecycle import TEMPLATE_REFUSED, PodState, Progress, RankPod, Situation, Terms
from coda.lifecycle.state import is_live, lacks_its_record, live_ranks
from coda.lifecycle.steps import NEXT, next_step
from coda.model import FINISHED, JobId, Phase, PlacementState
from coda.model.job import StopCause, StopOrder
from coda.model.trial_run import TrialOutcome, TrialRun
from tests.core.gangs import CONFIG, NOW_S, plan

ORDER = StopOrder(cause=StopCause.MIGRATE, by=JobId("team/other"), since_s=NOW_S - 3)
pods = st.builds(
    RankPod,
    name=st.just("p"),
    uid=st.uuids().map(str),
    attempt=st.integers(1, 2),
    rank=st.integers(0, 1),
    plan_id=st.sampled_from(["p0", "p1", "p1", "p1"]),
    node=st.sampled_from([None, "n1", "n2"]),
    state=st.sampled_from(PodState),
    ended=st.booleans(),
    terminating=st.booleans(),
    shorten_to_s=st.sampled_from([0, 0, 30]),
    gone_by_s=st.sampled_from([900.0, 999.0]),
    finalizers=st.sampled_from([(), ("example.com/keep",)]),
    unschedulable_since_s=st.sampled_from([None, 990.0, 999.0]),
    disrupted=st.booleans(),
    pinned_to=st.sampled_from(["n1", "n1", "n2"]),
    owned=st.sampled_from([True, True, False]),
    named=st.sampled_from([True, True, False]),
    held=st.booleans(),
    told=st.sampled_from(["", "p1"]),
)
situations = st.builds(
    Situation,
    terms=st.builds(
        Terms,
        replicas=st.just(2),
        retries=st.integers(0, 2),
        rank_zero_decides=st.booleans(),
        active_deadline_s=st.sampled_from([None, 1.0, 1000.0]),
        start_deadline_s=st.sampled_from([1.0, 1800.0]),
        ttl_s=st.sampled_from([None, 0.0, 50.0]),
        suspend=st.booleans(),
        is_applied=st.booleans(),
        waits_for_nodes=st.booleans(),
    ),
    generation=st.integers(1, 2),
    progress=st.builds(
        Progress,
        phase=st.sampled_from([None, *Phase]),
        attempt=st.integers(1, 2),
        failures=st.integers(0, 3),
        generation=st.integers(1, 2),
        queued_s=st.just(900.0),
        launch_s=st.just(990.0),
        start_s=st.sampled_from([0.0, 995.0]),
        reason=st.sampled_from(["", TEMPLATE_REFUSED]),
        stop_due_s=st.sampled_from([0.0, 0.0, NOW_S - 1, NOW_S + 5, NOW_S + 5000]),
        trial=st.one_of(
            st.none(),
            st.builds(
                TrialRun,
                attempt=st.integers(1, 2),
                since_s=st.sampled_from([0.0, 600.0, 990.0]),
                outcome=st.sampled_from([None, None, *TrialOutcome]),
            ),
        ),
    ),
    held=st.sampled_from([True, True, False]),
    recorded=st.booleans(),
    deleting=st.booleans(),
    orphaning=st.sampled_from([False, False, False, True]),
    placement=st.one_of(
        st.none(),
        st.builds(
            plan,
            st.integers(1, 2),
            epoch=st.sampled_from([6, 7]),
            state=st.sampled_from(PlacementState),
            stop=st.sampled_from([None, None, ORDER, replace(ORDER, notice_s=30.0)]),
        ),
    ),
    epoch=st.sampled_from([None, 7]),
    pods=st.lists(pods, max_size=4, unique_by=lambda pod: (pod.attempt, pod.rank)).map(tuple),
    vanished=st.sampled_from([frozenset(), frozenset(), frozenset({1})]),
    unready_since_s=st.sampled_from([{}, {"n1": 900.0}, {"n2": 999.0}]),
    given_up=st.sampled_from([frozenset(), frozenset(), frozenset({"n1"})]),
    braked=st.booleans(),
    converged=st.sampled_from(["", "", "the loss has not improved"]),
    answered=st.sampled_from(["", "", "p0", "p1"]),
    saved_s=st.sampled_from([0.0, 995.0, 2000.0]),
    is_done=st.booleans(),
    wants_trial=st.booleans(),
    has_stepped=st.booleans(),
)


@given(situations)
def test_every_change_of_phase_is_legal(now: Situation) -> None:
    before, after = now.progress.phase, next_step(now, NOW_S, CONFIG).progress.phase
    assert before is after or after in NEXT[before]


@given(situations)
def test_a_step_once_written_is_not_taken_again(now: Situation) -> None:
    """Deciding twice on the same outside world with the first answer written: nothing is counted a second time."""
    first = next_step(now, NOW_S, CONFIG).progress
    second = next_step(replace(now, progress=first), NOW_S, CONFIG).progress
    assert second.failures + second.disruptions <= first.failures + first.disruptions + (
        0 if first.phase in FINISHED | {Phase.RESTARTING, Phase.SUSPENDED} else 1
    )


@given(situations)
def test_without_a_change_outside_everything_comes_to_rest(now: Situation) -> None:
    """Written as decided, the status stops changing after a few steps: nothing is rewritten for ever."""
    for _ in range(5):
        now = replace(now, progress=next_step(now, NOW_S, CONFIG).progress)
    assert next_step(now, NOW_S, CONFIG).progress == now.progress


@given(situations)
def test_a_pod_that_leaves_is_looked_at_again(now: Situation) -> None:
    """Whoever waits for a pod on a node that is not Ready has a moment at which it stops waiting."""
    step = next_step(now, NOW_S, CONFIG)
    settled = step.progress.phase in FINISHED and not now.held  # nothing of the job is Coda's any more
    waits = now.deleting or step.progress.phase in (Phase.RESTARTING, Phase.SUSPENDED)
    if waits and not settled and any(pod.node == "n2" for pod in now.pods) and "n2" in now.unready_since_s:
        assert step.wake_s is not None


@given(situations)
def test_pods_are_created_only_for_a_released_plan_of_this_attempt_and_epoch(now: Situation) -> None:
    step = next_step(now, NOW_S, CONFIG)
    if step.create:
        assert now.placement is not None
        assert now.placement.state is PlacementState.RELEASED
        assert now.placement.attempt == now.progress.attempt
        assert all(pod.plan_id == now.placement.plan_id for pod in now.pods if pod.attempt == now.progress.attempt)
        assert not now.vanished
        assert now.epoch in (None, now.placement.epoch)
        assert not now.deleting
        assert not now.terms.suspend


@given(situations)
def test_whoever_leaves_the_attempt_deletes_all_its_pods_that_run(now: Situation) -> None:
    """But for those that are to stay when the job is deleted."""
    step = next_step(now, NOW_S, CONFIG)
    if step.progress.phase in FINISHED | {Phase.RESTARTING, Phase.SUSPENDED}:
        kept = {pod.uid for pod in now.pods} - {pod.uid for pod in step.delete}
        running = [pod for pod in now.pods if pod.uid in kept and not pod.ended and not pod.terminating]
        assert all(now.deleting and (now.orphaning or not pod.owned) for pod in running)


@given(situations)
def test_a_wake_up_lies_ahead(now: Situation) -> None:
    wake_s = next_step(now, NOW_S, CONFIG).wake_s
    assert wake_s is None or wake_s > NOW_S


@given(situations)
def test_a_job_goes_only_once_its_record_is_stored(now: Situation) -> None:
    """Held by us, accepted and not recorded: it is neither let go nor deleted.

    Its record is asked for at its end, once none of its pods can hold GPUs."""
    step = next_step(now, NOW_S, CONFIG)
    if lacks_its_record(now):
        assert not step.finalize
        assert not step.remove
        assert not step.clear
    assert not step.record or (lacks_its_record(now) and (now.deleting or now.progress.phase in FINISHED))
    if not now.deleting and now.progress.phase in FINISHED:
        ends = bool(step.delete) or any(is_live(pod, now, NOW_S, CONFIG) for pod in now.pods)
        assert step.record == (lacks_its_record(now) and not ends)
    if not lacks_its_record(now):
        recorded = next_step(replace(now, recorded=True), NOW_S, CONFIG)
        assert step == recorded  # the history changes nothing else


@given(situations)
def test_the_record_of_a_finished_job_comes_in_time_whatever_becomes_of_its_nodes(now: Situation) -> None:
    """It waits for pods that are being deleted: until their nodes are away, and for none longer than `overdue_s`.

    The job looks again by itself then, and charges nothing any more."""
    gone_by_s, away_since_s = 999.0, now.unready_since_s
    pods = [replace(pod, terminating=True, shorten_to_s=0, gone_by_s=gone_by_s) for pod in now.pods]
    phase = now.progress.phase if now.progress.phase in FINISHED else Phase.SUCCEEDED
    now = replace(now, pods=tuple(pods), orphaning=False, progress=replace(now.progress, phase=phase))
    last_s = [
        away_since_s[pod.node] + CONFIG.node_loss_s if pod.node in away_since_s else gone_by_s + CONFIG.overdue_s
        for pod in pods
        if pod.node and not pod.ended
    ]
    due_s, at_s = max([NOW_S, *last_s]), NOW_S
    while not (step := next_step(now, at_s, CONFIG)).record and lacks_its_record(now):
        assert step.wake_s is not None
        at_s = step.wake_s
        assert at_s <= due_s
    assert not lacks_its_record(now) or step.record
    assert live_ranks(now, due_s, CONFIG) == 0
