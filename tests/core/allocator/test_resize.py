"""Carrying out a grant of cores on a gang's pods: each step, and what always holds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.allocator import RankSize
from coda.allocator.resize import (
    GIVING_BACK_S,
    Obstacle,
    Progressing,
    Resize,
    ResizeState,
    ResizeStep,
    give_up,
    next_resize,
)
from coda.model.job import TAKEN_BACK, WishAnswer

NOW_S = 100.0
GRANT = WishAnswer(sequence=3, granted=True, cores=8, answered_s=95.0, deadline_s=125.0)
SHRINK = replace(GRANT, cores=4)


def size(cores: int = 6, *, wanted: int | None = None, actual: int | None = None, rank: int = 0) -> RankSize:
    """Of a rank that was promised and has `cores`, and wants as many unless told."""
    return RankSize(
        name=f"gang-1-{rank}",
        uid=f"uid-{rank}",
        version="7",
        container="main",
        wanted_m=1000 * (cores if wanted is None else wanted),
        allocated_m=1000 * cores,
        actual_m=(1000 * (cores if actual is None else actual),) * 2,
    )


def saying(one: RankSize, says: Progressing, reason: str = "", message: str = "no room") -> RankSize:
    return replace(one, says=says, reason=reason or says.name.capitalize(), message=message)


def told(state: ResizeState, *, since_s: float = 96.0, wanted: int = 8, cores: int = 6, **more: str) -> Resize:
    return Resize(attempt=1, sequence=3, state=state, wanted=wanted, cores=cores, since_s=since_s, **more)


def step(
    *sizes: RankSize, answer: WishAnswer | None = GRANT, before: Resize | None = None, now_s: float = NOW_S
) -> ResizeStep:
    found = next_resize(answer, before, 1, sizes, now_s)
    assert found is not None
    return found


def cores_of(patches: tuple[tuple[RankSize, int], ...]) -> dict[str, int]:
    return {one.name: cores_m // 1000 for one, cores_m in patches}


def test_a_new_grant_is_patched_into_every_rank_at_once() -> None:
    found = step(size(), size(rank=1))
    assert cores_of(found.patches) == {"gang-1-0": 8, "gang-1-1": 8}
    assert found.resize == told(ResizeState.RESIZING, since_s=NOW_S)
    assert found.wake_s == GRANT.deadline_s


def test_ranks_that_were_patched_already_are_left_alone() -> None:
    assert cores_of(step(size(wanted=8), size(rank=1)).patches) == {"gang-1-1": 8}


@pytest.mark.parametrize(
    ("last", "state"),
    [
        pytest.param(size(8), ResizeState.DONE, id="wanted, allocated and actual alike"),
        pytest.param(size(8, actual=6), ResizeState.RESIZING, id="the runtime has not applied it"),
        pytest.param(size(wanted=8), ResizeState.RESIZING, id="the kubelet has not allocated it"),
        pytest.param(replace(size(8), actual_m=(8000, 6000)), ResizeState.RESIZING, id="the limit is the old one"),
        pytest.param(saying(size(8), Progressing.UNSEEN), ResizeState.RESIZING, id="what it says is about earlier"),
        pytest.param(saying(size(8), Progressing.UNDER_WAY), ResizeState.RESIZING, id="it says it is at it"),
        pytest.param(saying(size(wanted=8), Progressing.DEFERRED), ResizeState.DEFERRED, id="it has no room now"),
    ],
)
def test_it_is_done_when_the_last_rank_is(last: RankSize, state: ResizeState) -> None:
    found = step(size(8, rank=1), last, before=told(ResizeState.RESIZING))
    assert found.resize.state is state
    assert found.resize.cores == (8 if state is ResizeState.DONE else 6)


def test_what_a_rank_waits_for_is_told() -> None:
    resize = step(size(8, rank=1), saying(size(wanted=8), Progressing.DEFERRED)).resize
    assert (resize.reason, resize.message) == ("Deferred", "gang-1-0: no room")


def test_growth_that_is_late_is_given_up_before_anything_is_taken_back() -> None:
    late = saying(size(wanted=8), Progressing.DEFERRED, message="used: 2000")
    found = step(size(8, rank=1), late, before=told(ResizeState.DEFERRED), now_s=125.0)
    assert found.patches == ()
    assert found.resize.state is ResizeState.REVERTING
    assert found.resize.reason == "DeadlineExceeded"
    assert found.resize.message == "1 of 2 ranks did not get the cores in time: gang-1-0 (used: 2000)"


def test_all_ranks_go_back_to_what_they_had_together() -> None:
    before = told(ResizeState.REVERTING, reason="DeadlineExceeded")
    found = step(size(8, rank=1), saying(size(wanted=8), Progressing.DEFERRED), before=before)
    assert cores_of(found.patches) == {"gang-1-0": 6, "gang-1-1": 6}
    over = step(size(6, rank=1), size(6), before=before)
    assert over.resize == replace(before, state=ResizeState.REFUSED, since_s=NOW_S)
    assert over.patches == ()


def test_growth_that_nobody_began_in_time_is_never_begun() -> None:
    found = step(size(), now_s=126.0)
    assert (found.resize.state, found.patches) == (ResizeState.REVERTING, ())
    assert found.resize.reason == "NoAnswer"  # no node said that it has no room


def test_growth_that_was_allocated_but_never_applied_is_given_back_too() -> None:
    stuck = saying(size(8, actual=6), Progressing.UNDER_WAY, reason="Error", message="cgroup busy")
    found = step(stuck, before=told(ResizeState.RESIZING), now_s=125.0)
    assert found.resize.state is ResizeState.REVERTING
    assert cores_of(step(stuck, before=found.resize, now_s=125.0).patches) == {"gang-1-0": 6}


def test_a_shrink_has_no_deadline() -> None:
    slow = size(6, wanted=4)
    found = step(slow, answer=SHRINK, before=told(ResizeState.RESIZING, wanted=4), now_s=1e6)
    assert (found.resize.state, found.patches, found.wake_s) == (ResizeState.RESIZING, (), None)


def test_cores_that_a_cpu_job_waits_for_are_given_back_by_the_deadline_or_not_at_all() -> None:
    order = replace(SHRINK, code=TAKEN_BACK)
    waits = saying(size(wanted=4), Progressing.DEFERRED)
    assert step(waits, answer=order).wake_s == order.deadline_s
    late = step(waits, answer=order, before=told(ResizeState.DEFERRED, wanted=4), now_s=order.deadline_s)
    assert (late.resize.state, late.resize.reason) == (ResizeState.REVERTING, "DeadlineExceeded")
    assert "did not give cores back in time" in late.resize.message
    withdrawn = step(waits, answer=order, before=late.resize, now_s=order.deadline_s)
    assert cores_of(withdrawn.patches) == {"gang-1-0": 6}
    ended = step(size(), answer=order, before=late.resize, now_s=order.deadline_s + 1)
    assert (ended.resize.state, ended.resize.cores) == (ResizeState.REFUSED, 6)


def test_what_a_node_never_allows_ends_the_resize_at_once() -> None:
    never = saying(size(wanted=8), Progressing.INFEASIBLE, reason="StaticCPUManager", message="alongside static")
    found = step(never, size(8, rank=1), before=told(ResizeState.RESIZING))
    assert (found.resize.state, found.resize.reason) == (ResizeState.REVERTING, "StaticCPUManager")
    assert cores_of(step(never, size(8, rank=1), before=found.resize).patches) == {"gang-1-0": 6, "gang-1-1": 6}


def test_after_a_shrink_that_one_node_refuses_the_others_get_back_what_they_had() -> None:
    """Nobody would wish for it again: a node that refuses one count refuses all. Until then nobody else gets it."""
    never = saying(size(6, wanted=4), Progressing.INFEASIBLE)
    before = told(ResizeState.REVERTING, wanted=4)
    patches = step(never, size(4, rank=1), answer=SHRINK, before=before).patches
    assert cores_of(patches) == {"gang-1-0": 6, "gang-1-1": 6}
    over = step(size(6), size(6, rank=1), answer=SHRINK, before=before).resize
    assert (over.state, over.cores) == (ResizeState.REFUSED, 6)


def test_a_rank_that_does_not_get_back_what_it_had_keeps_what_it_has_in_the_end() -> None:
    full = saying(size(4, wanted=6, rank=1), Progressing.DEFERRED)
    before = told(ResizeState.REVERTING, since_s=NOW_S, wanted=4)
    late_s = NOW_S + GIVING_BACK_S
    assert cores_of(step(size(6), full, answer=SHRINK, before=before, now_s=late_s).patches) == {"gang-1-1": 4}
    over = step(size(6), size(4, rank=1), answer=SHRINK, before=before, now_s=late_s).resize
    assert (over.state, over.cores) == (ResizeState.REFUSED, 4)


def test_growth_back_that_a_kubelet_defers_is_patched_once_and_withdrawn_in_the_end() -> None:
    """Somebody outside Coda took the cores that the shrink had freed."""
    before, rank, moves = told(ResizeState.REVERTING, since_s=NOW_S, wanted=4), size(4, rank=1), list[tuple[int, int]]()
    for look_s in range(0, 120, 2):
        found = next_resize(SHRINK, before, 1, [size(6), rank], NOW_S + look_s)
        if found is None:
            break
        before = found.resize
        for _, cores_m in found.patches:
            moves.append((look_s, cores_m // 1000))
            rank = size(4, wanted=cores_m // 1000, rank=1)
            rank = saying(rank, Progressing.DEFERRED) if cores_m > rank.allocated_m else rank
    assert moves == [(0, 6), (GIVING_BACK_S, 4)]
    assert (before.state, before.cores) == (ResizeState.REFUSED, 4)


def test_growth_back_that_a_kubelet_defers_comes_once_there_is_room() -> None:
    before = told(ResizeState.REVERTING, since_s=NOW_S, wanted=4)
    waits = saying(size(4, wanted=6, rank=1), Progressing.DEFERRED)
    found = step(size(6), waits, answer=SHRINK, before=before, now_s=NOW_S + GIVING_BACK_S - 1.0)
    assert (found.patches, found.wake_s) == ((), NOW_S + GIVING_BACK_S)
    over = step(size(6), size(6, rank=1), answer=SHRINK, before=before).resize
    assert (over.state, over.cores) == (ResizeState.REFUSED, 6)


def test_ranks_that_gave_cores_back_to_a_cpu_job_do_not_take_them_again() -> None:
    """It may have them already. To grow again needs a grant of its own."""
    order = replace(SHRINK, code=TAKEN_BACK)
    never = saying(size(6, wanted=4), Progressing.INFEASIBLE)
    before = told(ResizeState.REVERTING, wanted=4)
    assert cores_of(step(never, size(4, rank=1), answer=order, before=before).patches) == {"gang-1-0": 6}
    over = step(size(6), size(4, rank=1), answer=order, before=before).resize
    assert (over.state, over.cores) == (ResizeState.REFUSED, 4)


@pytest.mark.parametrize("code", ["", TAKEN_BACK])
def test_cores_that_the_pod_asks_for_anyway_are_not_given_up(code: str) -> None:
    """They would be free for nobody. Down to them it shrinks."""
    ranks = [replace(size(rank=rank), least_m=4500) for rank in (0, 1)]
    found = step(*ranks, answer=replace(SHRINK, code=code))
    assert (found.resize.state, found.resize.reason, found.patches) == (ResizeState.REVERTING, "AskedAnyway", ())
    over = step(*ranks, answer=replace(SHRINK, code=code), before=found.resize).resize
    assert (over.state, over.cores) == (ResizeState.REFUSED, 6)
    assert cores_of(step(*ranks, answer=replace(SHRINK, cores=5, code=code)).patches) == {"gang-1-0": 5, "gang-1-1": 5}


@pytest.mark.parametrize("obstacle", Obstacle)
def test_a_pod_whose_cores_cannot_be_changed_is_never_patched(obstacle: Obstacle) -> None:
    stiff = replace(size(rank=1), obstacle=obstacle)
    found = step(size(), stiff)
    assert (found.resize.state, found.resize.reason, found.patches) == (ResizeState.REVERTING, obstacle.value, ())
    over = step(size(), stiff, before=found.resize)
    assert (over.resize.state, over.patches) == (ResizeState.REFUSED, ())


def test_ranks_that_no_node_lets_be_alike_again_are_left_as_they_are_in_the_end() -> None:
    never = saying(size(8, wanted=6), Progressing.INFEASIBLE)
    before = told(ResizeState.REVERTING, since_s=NOW_S)
    assert cores_of(step(never, size(6, rank=1), before=before).patches) == {"gang-1-0": 8}
    withdrawn = (size(8), size(6, rank=1))
    again = step(*withdrawn, before=before)
    assert (cores_of(again.patches), again.wake_s) == ({"gang-1-0": 6}, NOW_S + GIVING_BACK_S)
    over = step(*withdrawn, before=before, now_s=NOW_S + GIVING_BACK_S)
    assert (over.resize.state, over.resize.cores) == (ResizeState.REFUSED, 6)


@pytest.mark.parametrize(
    ("answer", "before", "attempt"),
    [
        pytest.param(None, None, 1, id="no wish was answered"),
        pytest.param(replace(GRANT, granted=False), None, 1, id="it was refused"),
        pytest.param(GRANT, told(ResizeState.DONE), 1, id="it is done"),
        pytest.param(GRANT, told(ResizeState.REFUSED), 1, id="it was given up"),
        pytest.param(GRANT, replace(told(ResizeState.RESIZING), sequence=4), 1, id="a later one is told already"),
    ],
)
def test_nothing_is_to_be_done(answer: WishAnswer | None, before: Resize | None, attempt: int) -> None:
    assert next_resize(answer, before, attempt, [size()], NOW_S) is None


def test_what_was_told_of_an_earlier_attempt_says_nothing_of_this_one() -> None:
    found = next_resize(GRANT, told(ResizeState.DONE), 2, [size()], NOW_S)
    assert found is not None
    assert (found.resize.attempt, found.resize.state) == (2, ResizeState.RESIZING)


def test_giving_up_keeps_what_the_resize_was_about() -> None:
    resize = give_up(told(ResizeState.RESIZING), "QuotaExceeded", "exceeded quota", NOW_S)
    assert resize == told(ResizeState.REVERTING, since_s=NOW_S, reason="QuotaExceeded", message="exceeded quota")


# --- a law, over kubelets that do anything they may -------------------------------------------------------------------


def react(one: RankSize, rng: random.Random, *, static: bool) -> RankSize:
    """What a kubelet may have made of a pod by the next look."""
    if one.wanted_m == one.allocated_m:
        return replace(one, actual_m=(one.allocated_m,) * 2, says=Progressing.NOTHING)
    if static:
        return replace(one, says=Progressing.INFEASIBLE)
    if one.wanted_m > one.allocated_m and rng.random() < 0.5:
        return replace(one, says=Progressing.DEFERRED)
    return replace(one, allocated_m=one.wanted_m, says=Progressing.UNDER_WAY)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 10),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.floats(0.0, 1.0),
    st.integers(0, 10**6),
)
def test_every_resize_ends_with_nothing_pending_though_its_memory_is_lost_at_times(
    ranks: int, wanted: int, static: list[bool], loss: float, seed: int
) -> None:
    """Killed between any two steps: what was told may be lost, what was patched is not."""
    rng, answer = random.Random(seed), replace(GRANT, cores=wanted)
    sizes = [size(5, rank=rank) for rank in range(ranks)]
    resize: Resize | None = None
    for round_ in range(400):
        found = next_resize(answer, resize, 1, sizes, NOW_S + round_)
        if found is None:
            break
        patched = {one.uid: cores_m for one, cores_m in found.patches}
        sizes = [
            replace(one, wanted_m=patched[one.uid], says=Progressing.UNSEEN) if one.uid in patched else one
            for one in sizes
        ]
        resize = found.resize if rng.random() >= 0.3 * loss else resize
        sizes = [react(one, rng, static=static[rank]) if rng.random() < 0.7 else one for rank, one in enumerate(sizes)]
    assert resize is not None
    assert resize.has_ended
    assert all(one.wanted_m == one.allocated_m and one.says is not Progressing.DEFERRED for one in sizes)
    if resize.state is ResizeState.DONE:
        assert {one.wanted_m for one in sizes} == {wanted * 1000}
    if resize.state is ResizeState.REFUSED and wanted > 5:
        assert {one.allocated_m for one in sizes} == {5000}
