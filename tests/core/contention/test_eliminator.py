from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from coda.contention import (
    ContentionConfig,
    EliminatorState,
    Hardware,
    Means,
    PodSample,
    Protection,
    ThrottleReason,
    TrainingSample,
    Window,
    observe,
)
from coda.contention.reference import Reference
from coda.contention.throttles import (
    Stage,
    Throttle,
    absolute_limits,
    is_still_limited,
    percent_limits,
    predicted_rebound,
)
from coda.errors import InvalidInput
from tests.core.contention.contention_world import AMD, AMD_UNIT, ARM, GB, INTEL, NO_MBA, PEAK, Load, Node, Victim

pytestmark = pytest.mark.heavy

HOG = Load(uid="hog", gb_per_s=120)
ONSET_S = 30

MACHINES = [
    pytest.param(INTEL, 0.0, Means.BANDWIDTH, id="Intel"),
    pytest.param(AMD, AMD_UNIT, Means.BANDWIDTH, id="AMD"),
    pytest.param(ARM, 0.0, Means.BANDWIDTH, id="Arm"),
    pytest.param(NO_MBA, 0.0, Means.CORES, id="no MBA"),
]


@pytest.mark.parametrize(("hardware", "unit", "means"), MACHINES)
def test_an_aggressor_is_throttled_at_once_and_the_victim_recovers(
    hardware: Hardware, unit: float, means: Means
) -> None:
    node = Node(loads=(HOG,), hardware=hardware, unit_bytes_per_s=unit).run(180)
    first_s, first = node.actions[0]
    assert first_s <= ONSET_S + 5
    assert (first.means, first.pods, first.reason, first.jobs) == (
        means,
        ("hog",),
        ThrottleReason.CONTENDED,
        ("a/train",),
    )
    assert node.busy_by_job["a/train"][-1] >= 0.95 * node.busy_by_job["a/train"][0]


@pytest.mark.parametrize(("hardware", "unit", "means"), MACHINES)
def test_everything_is_given_back_step_by_step_when_the_cause_ends(
    hardware: Hardware, unit: float, means: Means
) -> None:
    node = Node(loads=(replace(HOG, until_s=400),), hardware=hardware, unit_bytes_per_s=unit).run(400 + 240)
    back = [(at_s, action) for at_s, action in node.actions if at_s >= 400]
    assert back[0][0] <= 475
    assert node.is_untouched
    values = [action.value for _at_s, action in back]
    assert values == sorted(values)
    assert [action.ends for _at_s, action in back] == [False] * (len(back) - 1) + [True]
    assert {action.reason for _at_s, action in back} == {ThrottleReason.CALM}


@pytest.mark.parametrize(
    ("victim", "load"),
    [
        pytest.param(Victim(job="a/train", loss=0.0), HOG, id="bandwidth without a job that suffers"),
        pytest.param(Victim(job="a/train"), replace(HOG, gb_per_s=60), id="a load that leaves the socket calm"),
        pytest.param(Victim(job="a/train", socket=1), HOG, id="a job on the other socket"),
    ],
)
def test_nothing_is_throttled_without_both_conditions_on_one_socket(victim: Victim, load: Load) -> None:
    assert Node(loads=(load,), victims=(victim,)).run(300).actions == []


def test_a_drop_of_utilisation_alone_throttles_nobody() -> None:
    state, config = EliminatorState(), ContentionConfig()
    for at_s in range(100):
        share = 0.8 if at_s < 50 else 0.4
        jobs = (TrainingSample(job="a/train", sockets=frozenset({0}), cores=4, share=share),)
        window = Window(
            at_s=at_s, share_by_socket={0: 0.7}, pods=(PodSample(uid="p", bytes_per_s={0: 60 * GB}),), jobs=jobs
        )
        state, actions = observe(state, window, INTEL, config)
        assert actions == ()


def test_two_windows_of_contention_are_no_contention() -> None:
    node = Node(loads=(replace(HOG, until_s=ONSET_S + 2),)).run(200)
    assert node.actions == []


@pytest.mark.parametrize("protection", Protection)
def test_the_heaviest_pod_that_may_be_touched_is_throttled(protection: Protection) -> None:
    spared = Load(uid="spared", gb_per_s=90, protections=frozenset({protection}))
    node = Node(loads=(spared, Load(uid="light", gb_per_s=20), Load(uid="heavy", gb_per_s=40))).run(35)
    assert {action.pods for _at_s, action in node.actions} == {("heavy",)}


def test_equal_pods_are_throttled_in_the_order_of_their_uids() -> None:
    loads = (Load(uid="b", gb_per_s=60), Load(uid="a", gb_per_s=60))
    assert Node(loads=loads, hardware=NO_MBA).run(35).actions[0][1].pods == ("a",)


def test_halving_stops_at_one_core() -> None:
    stubborn = Load(uid="spared", gb_per_s=200, protections=frozenset({Protection.STATIC}))
    node = Node(loads=(Load(uid="small", gb_per_s=50, cores=3), stubborn), hardware=NO_MBA).run(55)
    assert [action.value for _at_s, action in node.actions] == [1.5, 1.0, 3.0]  # the last one undoes: it helped nobody


STUBBORN = Load(uid="spared", gb_per_s=200, protections=frozenset({Protection.STATIC}))


@pytest.mark.parametrize("hardware", [INTEL, NO_MBA], ids=["MBA", "no MBA"])
def test_throttles_that_help_nobody_are_undone_and_tried_again_ever_later(hardware: Hardware) -> None:
    node = Node(loads=(Load(uid="small", gb_per_s=50), STUBBORN), hardware=hardware).run(3 * 3600)
    assert node.is_untouched
    episodes = node.episodes()
    assert {last.reason for _first_s, _last_s, last in episodes} == {ThrottleReason.NO_GAIN}
    assert all(last_s - first_s <= 15 for first_s, last_s, _last in episodes)
    pauses = [after[0] - before[1] for before, after in pairwise(episodes)]
    assert pauses == [600, 1200, 2400, 3600]


def test_a_new_pod_after_a_trial_without_gain_is_worth_another_one() -> None:
    node = Node(loads=(Load(uid="small", gb_per_s=50), replace(STUBBORN, until_s=1800))).run(1790)
    assert node.is_untouched
    node.loads = (*node.loads, Load(uid="hog", gb_per_s=300))
    node.run(60)
    assert any("hog" in action.pods for _at_s, action in node.actions)


def test_a_trial_that_fails_leaves_the_throttles_that_helped() -> None:
    node = Node(loads=(replace(HOG, gb_per_s=90),)).run(1200)
    (held,) = node.state.throttles
    node.loads = (*node.loads, replace(STUBBORN, gb_per_s=40), Load(uid="small", gb_per_s=3))
    node.victims = (Victim(job="a/train", busy=0.6, loss=0.0),)  # it is slowed by something else
    node.run(60)
    (now,) = node.state.throttles
    assert (now.value, now.pods) == (held.value, held.pods)
    assert node.actions[-1][1].reason is ThrottleReason.NO_GAIN


@pytest.mark.parametrize(("hardware", "unit", "means"), MACHINES)
def test_a_load_that_still_presses_is_held_and_checked_ever_less_often(
    hardware: Hardware, unit: float, means: Means
) -> None:
    node = Node(loads=(HOG,), hardware=hardware, unit_bytes_per_s=unit).run(3 * 3600)
    assert {action.means for _at_s, action in node.actions} == {means}
    assert {action.reason for _at_s, action in node.actions} == {ThrottleReason.CONTENDED, ThrottleReason.PROBATION}
    checks = [at_s for at_s, action in node.actions if action.reason is ThrottleReason.PROBATION]
    assert [round(after - before, -1) for before, after in pairwise(checks)] == [60, 180, 540, 1620, 3600, 3600]
    assert node.state.throttles


@pytest.mark.parametrize("hardware", [INTEL, NO_MBA], ids=["MBA", "no MBA"])
def test_a_load_with_pauses_stays_throttled(hardware: Hardware) -> None:
    node = Node(loads=(replace(HOG, pause_s=10),), hardware=hardware).run(3600)
    assert node.state.throttles
    assert len(node.episodes(since_s=ONSET_S + 180)) <= 3


@pytest.mark.parametrize("hardware", [INTEL, NO_MBA], ids=["MBA", "no MBA"])
def test_nothing_stays_throttled_for_a_job_that_ended(hardware: Hardware) -> None:
    node = Node(loads=(HOG,), victims=(Victim(job="a/train", until_s=300),), hardware=hardware).run(300 + 240)
    assert node.is_untouched
    assert node.actions[-1][1].reason is ThrottleReason.NO_VICTIM


@pytest.mark.parametrize("loss", [0.0, 0.5])
def test_throttles_for_a_job_that_ended_stay_only_if_another_one_gains(loss: float) -> None:
    node = Node(loads=(HOG,), victims=(Victim(job="a/train", until_s=300), Victim(job="b/train", loss=loss))).run(1500)
    lifted = [at_s for at_s, action in node.actions if action.reason is ThrottleReason.NO_VICTIM]
    assert (lifted, bool(node.state.throttles)) == (([], True) if loss else ([360], False))


def test_a_job_that_came_to_throttles_of_another_gets_its_own_once_these_are_lifted() -> None:
    node = Node(loads=(HOG,), victims=(Victim(job="a/train", until_s=300, gb_per_s=5),)).run(150)
    node.victims = (*node.victims, Victim(job="b/train", gb_per_s=5))
    node.run(300)
    lifted_s = next(at_s for at_s, action in node.actions if action.reason is ThrottleReason.NO_VICTIM)
    again_s, again = next((at_s, action) for at_s, action in node.actions if at_s > lifted_s)
    assert again.jobs == ("b/train",)
    assert again_s - lifted_s <= 5
    assert node.state.throttles


def test_a_helped_job_that_is_not_seen_for_some_windows_keeps_its_throttles() -> None:
    """As one whose traffic on this socket could not be measured."""
    node = Node(loads=(HOG,), victims=(Victim(job="a/train", until_s=300), Victim(job="b/train", loss=0.0))).run(350)
    node.victims = (Victim(job="a/train"), Victim(job="b/train", loss=0.0))
    assert ThrottleReason.NO_VICTIM not in {action.reason for _at_s, action in node.run(300).actions}


def test_without_sensors_nothing_is_done_and_throttles_end_after_their_lease() -> None:
    never = Node(loads=(HOG,), blind=lambda now_s: now_s >= ONSET_S).run(300)
    assert never.actions == []
    later = Node(loads=(HOG,), blind=lambda now_s: now_s >= 200).run(200 + 61)
    assert later.is_untouched
    assert (later.actions[-1][1].reason, later.actions[-1][0]) == (ThrottleReason.BLIND, 260)


@pytest.mark.parametrize(
    ("seconds", "values"),
    [pytest.param(45, [30], id="proved"), pytest.param(3, [], id="a trial is undone")],
)
def test_lost_gpus_freeze_the_throttles_that_helped(seconds: int, values: list[float]) -> None:
    node = Node(loads=(HOG,)).run(ONSET_S + seconds)
    for at_s in range(ONSET_S + seconds + 1, ONSET_S + seconds + 30):
        jobs = (TrainingSample(job="a/train", sockets=frozenset({0}), cores=4, share=None),)
        pods = (PodSample(uid="hog", bytes_per_s={0: 90 * GB}),)
        window = Window(at_s=at_s, share_by_socket={0: 1.0, 1: 0.0}, pods=pods, jobs=jobs)
        node.state, _actions = observe(node.state, window, INTEL, node.config)
    assert [one.value for one in node.state.throttles] == values


def test_nobody_is_throttled_for_a_pod_whose_gpus_are_never_measured() -> None:
    """As one that claims a network card, and asks for protection by its label."""
    node = Node(loads=())
    for at_s in range(2000):
        jobs = (TrainingSample(job="a/claims", sockets=frozenset({0}), cores=4, share=None),)
        pods = (PodSample(uid="hog", bytes_per_s={0: 90 * GB}),)
        window = Window(at_s=at_s, share_by_socket={0: 1.0, 1: 0.0}, pods=pods, jobs=jobs)
        node.state, actions = observe(node.state, window, INTEL, node.config)
        assert (actions, node.state.throttles) == ((), ())


def test_a_throttled_pod_that_opts_out_is_let_go_at_once() -> None:
    node = Node(loads=(HOG, Load(uid="other", gb_per_s=100))).run(100)
    assert node.limits[0][0] == ("hog", "other")
    node.loads = (replace(HOG, protections=frozenset({Protection.OPTED_OUT})), node.loads[1])
    node.run(1)
    at_s, action = node.actions[-1]
    assert (at_s, action.pods, action.ends, action.reason) == (101, ("other",), False, ThrottleReason.PROTECTED)


def test_the_limit_of_a_pod_that_is_gone_is_lifted() -> None:
    node = Node(loads=(HOG,)).run(100)
    node.loads = ()
    node.run(1)
    assert node.is_untouched
    assert node.actions[-1][1].ends


def test_a_throttled_pod_that_is_not_measured_is_believed_to_want_what_it_had() -> None:
    """What nobody measured is not 0: its release would then seem to cost nothing."""
    stage = Stage(value=100, bytes_per_s=90 * GB)
    held = Throttle(
        means=Means.BANDWIDTH, socket=0, pods=("hog",), value=50, stages=(stage,), settled_bytes_per_s=40 * GB
    )
    unmeasured, idle = ({"hog": PodSample(uid="hog", bytes_per_s=used)} for used in ({1: 0.0}, {0: 0.0, 1: 0.0}))
    assert (predicted_rebound(held, unmeasured), is_still_limited(held, unmeasured)) == (90 * GB, True)
    assert (predicted_rebound(held, idle), is_still_limited(held, idle)) == (0, False)
    assert (predicted_rebound(held, {}), is_still_limited(held, {})) == (0, False)


def test_sockets_are_judged_apart() -> None:
    loads = (HOG, Load(uid="far", gb_per_s=120, socket=1))
    victims = (Victim(job="a/near"), Victim(job="b/far", socket=1))
    node = Node(loads=loads, victims=victims).run(180)
    assert {(action.socket, action.pods, action.jobs) for _at_s, action in node.actions} == {
        (0, ("hog",), ("a/near",)),
        (1, ("far",), ("b/far",)),
    }


def test_a_clock_that_went_back_restarts_the_waiting() -> None:
    node = Node(loads=(replace(HOG, until_s=400),)).run(420)
    node.now_s = 410 - 405  # the loads' own times have passed: nothing wants bandwidth before the onset
    node.onset_s = 1e9
    node.run(55)
    assert node.state.throttles
    node.run(240)
    assert node.is_untouched


def test_windows_far_apart_are_no_row() -> None:
    state, config = Node(loads=()).run(30).state, ContentionConfig()
    pods = (PodSample(uid="hog", bytes_per_s={0: 90 * GB}),)
    jobs = (TrainingSample(job="a/train", sockets=frozenset({0}), cores=4, share=0.4),)
    for at_s in range(100, 1000, 70):
        window = Window(at_s=at_s, share_by_socket={0: 1.0}, pods=pods, jobs=jobs)
        state, actions = observe(state, window, INTEL, config)
        assert actions == ()


@pytest.mark.parametrize("share", [-0.1, float("nan"), float("inf")])
def test_refuses_bandwidth_that_cannot_be(share: float) -> None:
    with pytest.raises(InvalidInput, match="bandwidth must be finite and not negative"):
        Window(at_s=0.0, share_by_socket={0: share})


def test_refuses_a_share_of_an_unknown_peak() -> None:
    with pytest.raises(InvalidInput, match="socket 3 has a bandwidth share but no peak"):
        observe(EliminatorState(), Window(at_s=0.0, share_by_socket={3: 0.5}), INTEL, ContentionConfig())


@pytest.mark.parametrize(
    ("ladder", "expected"),
    [
        pytest.param(percent_limits(10, 10), (100, 90, 80, 70, 60, 50, 40, 30, 20), id="Intel, never under a fifth"),
        pytest.param(percent_limits(25, 25), (100, 75, 50, 25), id="coarse"),
        pytest.param(percent_limits(1, 1), (100, 90, 80, 70, 60, 50, 40, 30, 20), id="Arm, as on Intel"),
        pytest.param(percent_limits(1, 4), (100, 88, 76, 64, 52, 40, 28), id="whole granules"),
        pytest.param(percent_limits(5, 5, 75), (75, 70, 60, 50, 40, 30, 20), id="lowered by an administrator"),
        pytest.param(
            absolute_limits(2048, 25e9, 1e9 / 8), (2048, 180, 160, 140, 120, 100, 80, 60, 40), id="AMD, 25 GB/s"
        ),
        pytest.param(absolute_limits(4, 1e9, 1e9), (4, 1), id="steps below one unit fall together"),
    ],
)
def test_a_ladder_falls_from_unlimited(ladder: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert ladder == expected
    assert Hardware(peak_bytes_per_s={0: PEAK}, limits={0: ladder}).limits[0] == expected


def baseline_after(shares: Sequence[tuple[float, float | None]], cores: int = 4) -> Reference:
    """The baseline of a job after windows of (bandwidth share, utilisation)."""
    state = EliminatorState()
    for at_s, (bandwidth, share) in enumerate(shares):
        jobs = (TrainingSample(job="a/train", sockets=frozenset({0}), cores=cores, share=share),)
        window = Window(at_s=at_s, share_by_socket={0: bandwidth}, jobs=jobs)
        state, _actions = observe(state, window, INTEL, ContentionConfig())
    (reference,) = state.references
    return reference


def test_a_reference_is_the_mean_of_calm_windows() -> None:
    assert baseline_after([(0.1, 0.7), (0.1, 0.9)] * 5).share == pytest.approx(0.8)


def test_a_reference_is_not_learned_near_the_peak_nor_from_missing_samples() -> None:
    reference = baseline_after([(0.1, 0.8)] * 10 + [(0.9, 0.2), (0.1, None)] * 50)
    assert reference.share == pytest.approx(0.8)
    assert not baseline_after([(0.9, 0.2)] * 100).is_slowed(0.0, ContentionConfig())


def test_a_reference_follows_a_lasting_change_slowly() -> None:
    calm: list[tuple[float, float | None]] = [(0.1, 0.8)] * 10
    soon = baseline_after(calm + [(0.1, 0.4)] * 5)
    assert soon.is_slowed(0.4, ContentionConfig())
    assert not baseline_after(calm + [(0.1, 0.4)] * 300).is_slowed(0.4, ContentionConfig())


def test_a_reference_starts_again_when_the_job_s_cores_change_and_have_settled() -> None:
    node = Node(loads=()).run(30)
    (learned,) = node.state.references
    state = node.state
    for at_s in range(31, 43):
        window = Window(
            at_s=at_s,
            share_by_socket={0: 0.1, 1: 0.0},
            jobs=(TrainingSample(job="a/train", sockets=frozenset({0}), cores=5, share=0.4),),
        )
        state, _actions = observe(state, window, INTEL, ContentionConfig())
    assert (learned.cores, learned.learned) == (4, 10)
    assert (state.references[0].cores, state.references[0].learned, state.references[0].share) == (5, 2, 0.4)
