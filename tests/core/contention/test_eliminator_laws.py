"""Laws of the eliminator over nodes in a closed loop: whatever the loads, the hardware and the noise."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.contention import EliminatorState, Hardware, Means, Protection, ThrottleReason, Window, observe
from coda.contention.socket_state import slowed_names
from coda_kube.objects.dataclass_json import plain_from_value, value_from_plain
from tests.core.contention.contention_world import AMD, AMD_UNIT, INTEL, NO_MBA, Load, Node, Victim

pytestmark = pytest.mark.heavy

ONSET_S = 30
SETTLED_S = ONSET_S + 180

law = settings(max_examples=25, deadline=None)

loads = st.builds(
    Load,
    uid=st.sampled_from("abcdef"),
    gb_per_s=st.floats(1, 150),
    socket=st.integers(0, 1),
    cores=st.integers(1, 32).map(float),
    knee=st.floats(0.2, 1.0),
    protections=st.sampled_from((frozenset(), frozenset(), frozenset({Protection.STATIC}))),
)
victims = st.builds(
    Victim,
    job=st.sampled_from(("a/1", "a/2", "b/1")),
    gb_per_s=st.floats(0.5, 20),
    loss=st.floats(0, 0.7),  # what loses three quarters looks like a pause
    socket=st.integers(0, 1),
    busy=st.floats(0.3, 1.0),
)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    hardware = draw(st.sampled_from((INTEL, AMD, NO_MBA)))
    return Node(
        loads=tuple(draw(st.lists(loads, min_size=1, max_size=4, unique_by=lambda load: load.uid))),
        victims=tuple(draw(st.lists(victims, min_size=1, max_size=3, unique_by=lambda victim: victim.job))),
        hardware=hardware,
        unit_bytes_per_s=AMD_UNIT if hardware is AMD else 0.0,
        noise=draw(st.sampled_from((0.0, 0.01))),
        seed=draw(st.integers(0, 1000)),
    )


@law
@given(nodes())
def test_a_protected_pod_is_never_touched(node: Node) -> None:
    spared = {load.uid for load in node.loads if load.protections}
    assert all(spared.isdisjoint(action.pods) for _at_s, action in node.run(SETTLED_S).actions)


@law
@given(st.floats(0.052, 0.7), st.sampled_from((INTEL, NO_MBA)))
def test_the_first_throttle_comes_within_5_s_of_the_first_contended_window(loss: float, hardware: Hardware) -> None:
    node = Node(loads=(Load(uid="hog", gb_per_s=120),), victims=(Victim(job="a/1", loss=loss),), hardware=hardware)
    assert node.run(ONSET_S + 5).actions


@law
@given(nodes())
def test_no_throttle_goes_below_its_floor_or_above_its_origin(node: Node) -> None:
    first = {load.uid: load.cores for load in node.loads}
    for _at_s, action in node.run(SETTLED_S).actions:
        if action.means is Means.CORES:
            assert 1 <= action.value <= first[action.pods[0]]
        else:
            assert action.value in node.hardware.limits[action.socket]


@law
@given(nodes())
def test_every_throttle_is_released_soon_after_its_cause_has_ended(node: Node) -> None:
    node.loads = tuple(replace(load, until_s=400) for load in node.loads)
    node.run(399)
    in_force = node.state.throttles
    node.run(1 + 240)
    assert node.is_untouched
    assert not in_force or node.times(since_s=400)[0] <= 475


@law
@given(nodes(), st.integers(ONSET_S + 10, 250))
def test_no_throttle_outlives_the_jobs_that_it_helped(node: Node, end_s: int) -> None:
    """Whoever else is on their socket. A trial may be under way when they end."""
    node.victims = tuple(replace(one, until_s=end_s if i == 0 else one.until_s) for i, one in enumerate(node.victims))
    here = {victim.job for victim in node.victims[1:]}
    node.run(end_s + node.config.release_hold_s + node.config.trial_s + node.config.windows)
    for _ in range(100):
        for socket in node.run(1).state.sockets:
            held = any(throttle.socket == socket.socket for throttle in node.state.throttles)
            assert not held or here.intersection(slowed_names(socket))


@law
@given(nodes())
def test_constant_load_comes_to_rest(node: Node) -> None:
    """On each socket: a trial or a check of one that helped, at most twice in 10 min."""
    starts = [first_s for first_s, _last_s, _last in node.run(1500).episodes(since_s=SETTLED_S)]
    assert all(sum(start <= at_s < start + 600 for at_s in starts) <= 4 for start in starts)


@law
@given(nodes())
def test_a_job_that_can_be_helped_is_helped(node: Node) -> None:
    """Where the pods that may be touched are the cause and can be throttled far enough, the job recovers."""
    node.loads = tuple(replace(load, protections=frozenset(), cores=16.0, knee=0.9) for load in node.loads)
    node.run(600)
    for victim in node.victims:
        if node.least_pressure(victim.socket) <= node.config.trigger_share:
            busy = node.busy_by_job[victim.job]
            assert sum(busy[-60:]) / 60 >= 0.93 * victim.busy


@law
@given(nodes(), st.integers(31, 200), st.randoms(use_true_random=False))
def test_the_order_of_pods_and_jobs_does_not_matter(node: Node, seconds: int, rng: random.Random) -> None:
    node.run(seconds)
    window = node._window()
    pods, jobs = list(window.pods), list(window.jobs)
    rng.shuffle(pods)
    rng.shuffle(jobs)
    backwards = dict(reversed(list(window.share_by_socket.items())))
    shuffled = Window(at_s=window.at_s, share_by_socket=backwards, pods=pods, jobs=jobs)
    later = replace(window, at_s=window.at_s + 1), replace(shuffled, at_s=window.at_s + 1)
    assert len({repr(observe(node.state, one, node.hardware, node.config)) for one in later}) == 1


@law
@given(nodes(), st.integers(1, 200))
def test_what_is_remembered_survives_being_written_down(node: Node, seconds: int) -> None:
    state = node.run(seconds).state
    assert value_from_plain(EliminatorState, json.loads(json.dumps(plain_from_value(state)))) == state


@law
@given(nodes())
def test_every_action_has_its_reason_and_changes_something(node: Node) -> None:
    in_force: dict[tuple[Means, int, tuple[str, ...]], float] = {}
    for _at_s, action in node.run(400).actions:
        if action.reason is ThrottleReason.CONTENDED:
            assert action.jobs
        key = (action.means, action.socket, action.pods)
        assert in_force.get(key) != action.value
        in_force[key] = action.value
