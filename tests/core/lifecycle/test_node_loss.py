"""The brake of node loss: on while many nodes go away together, and held on by nobody for long."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from coda.lifecycle import LifecycleConfig, PodState
from coda.lifecycle.failures import attempt_failure
from coda.lifecycle.node_loss import Brake, brake_moment, next_brake, node_word_s
from coda.model import Phase
from tests.core.gangs import NOW_S, pod, situation

CONFIG = LifecycleConfig()
MINUTE_S = 60.0
HOUR_S = 3600.0


def away(count: int, since_s: float = 0.0) -> dict[str, float]:
    return {f"n{number}": since_s for number in range(count)}


def after(unready: dict[str, float], nodes: int, now_s: float, before: Brake | None = None) -> Brake:
    """The brake now, judged whenever it asks for it since the nodes went away."""
    brake = next_brake(before or Brake(), unready, nodes, max(unready.values(), default=now_s), CONFIG)
    while (moment_s := brake_moment(brake, CONFIG)) is not None and moment_s <= now_s:
        brake = next_brake(brake, unready, nodes, moment_s, CONFIG)
    return next_brake(brake, unready, nodes, now_s, CONFIG)


@pytest.mark.parametrize(
    ("gone", "nodes", "after_s", "on"),
    [
        pytest.param(2, 4, 1.0, False, id="two nodes are too few"),
        pytest.param(3, 10, 1.0, True, id="a third of the nodes"),
        pytest.param(29, 100, 1.0, False, id="fewer than a third"),
        pytest.param(3, 10, 29 * MINUTE_S, True, id="a third, for half an hour"),
        pytest.param(3, 10, 31 * MINUTE_S, False, id="a third that stays away"),
        pytest.param(12, 20, 31 * MINUTE_S, True, id="most nodes: perhaps nobody hears them"),
        pytest.param(12, 20, 3.9 * HOUR_S, True, id="most nodes, for hours"),
        pytest.param(12, 20, 4.1 * HOUR_S, False, id="most nodes that stay away: they are gone"),
        pytest.param(20, 20, 100 * HOUR_S, True, id="all nodes: there is nowhere to go"),
    ],
)
def test_how_long_the_brake_is_on(gone: int, nodes: int, after_s: float, on: bool) -> None:
    assert (after(away(gone), nodes, after_s).since_s is not None) is on


def test_nodes_that_stay_away_count_no_more_on_either_side() -> None:
    """12 of 20 are dead for good: 3 of the other 8 are many, and 2 are not."""
    dead = away(12)
    brake = after(dead, 20, 5 * HOUR_S)
    for more, on in ((2, False), (3, True)):
        unready = dead | {f"m{number}": 5 * HOUR_S for number in range(more)}
        assert (after(unready, 20, 5 * HOUR_S + 1, brake).since_s is not None) is on


def test_flapping_nodes_put_off_the_loss_of_another_by_half_an_hour_at_most() -> None:
    """A node is dead from the beginning; three of ten go away and come back every 40 s, for hours."""
    brake, lost_s = Brake(), math.inf
    for flap in range(500):
        now_s = 40.0 * flap
        away_now = {f"n{number}": now_s for number in range(3)} if flap % 2 else {}
        brake = next_brake(brake, {"dead": 0.0} | away_now, 10, now_s, CONFIG)
        if brake.since_s is None and now_s - brake.released_s >= CONFIG.node_loss_s:
            lost_s = min(lost_s, now_s)
    assert lost_s <= CONFIG.brake_limit_s + 3 * MINUTE_S
    assert brake.since_s is None


def test_an_outage_of_all_that_comes_and_goes_is_braked_each_time() -> None:
    """A load balancer that flaps for hours: every 3 min, nobody is heard for 2 min."""
    brake = Brake()
    for turn in range(100):
        gone_s = 3 * MINUTE_S * turn
        brake = next_brake(brake, away(10, gone_s), 10, gone_s, CONFIG)
        assert brake.since_s is not None
        brake = next_brake(brake, {}, 10, gone_s + 2 * MINUTE_S, CONFIG)
        assert brake.since_s is None


def test_after_a_calm_time_the_brake_lasts_as_long_as_the_first_time() -> None:
    brake = next_brake(after(away(3), 10, 40 * MINUTE_S), {}, 10, 41 * MINUTE_S, CONFIG)
    gone_s = 41 * MINUTE_S + CONFIG.brake_calm_s + 1
    assert after(away(3, gone_s), 10, gone_s + 29 * MINUTE_S, brake).since_s is not None


def test_a_share_of_one_is_never_on() -> None:
    config = replace(CONFIG, brake_least_nodes=11)
    assert next_brake(Brake(), away(10), 10, 1.0, config).since_s is None


OUTAGE = {"n1": (NOW_S - 100, NOW_S - 60)}
"""The node was rebooted: it was away, and it has been back for a minute."""


@pytest.mark.parametrize(
    ("started_s", "ended_s", "outages", "own"),
    [
        pytest.param(NOW_S - 400, NOW_S - 110, OUTAGE, True, id="it failed before"),
        pytest.param(0.0, NOW_S - 110, OUTAGE, True, id="it failed before, and ran for longer than anybody looks"),
        pytest.param(NOW_S - 400, NOW_S - 102, OUTAGE, False, id="it ended as the node went away"),
        pytest.param(NOW_S - 400, NOW_S - 50, OUTAGE, False, id="its end was told after the return"),
        pytest.param(NOW_S - 400, NOW_S + 600, OUTAGE, False, id="its end was told late: nothing outlives a reboot"),
        pytest.param(NOW_S - 50, NOW_S - 50, OUTAGE, False, id="nobody saw it run"),
        pytest.param(NOW_S - 50, NOW_S + 600, OUTAGE, True, id="it was made as the node came back, and ran"),
        pytest.param(NOW_S - 400, NOW_S - 110, {}, False, id="nobody saw the reboot"),
        pytest.param(None, NOW_S - 110, OUTAGE, False, id="nobody saw the end"),
    ],
)
def test_whose_fault_an_end_is_on_a_node_that_was_rebooted(
    started_s: float | None, ended_s: float, outages: dict[str, tuple[float, float | None]], own: bool
) -> None:
    rank = pod(0, node="n1", state=PodState.FAILED, exit_code=1)
    rank = replace(rank, boot="first", started_s=started_s, ended_s=ended_s)
    now = replace(situation(Phase.RUNNING, rank), boots={"n1": "second"}, outages=outages)
    failure = attempt_failure(now, max(NOW_S, ended_s), CONFIG)
    assert failure is not None
    assert (failure.own, failure.reason) == ((True, "RankFailed") if own else (False, "NodeOutage"))


@pytest.mark.parametrize(
    ("ended_s", "boots", "expected"),
    [
        pytest.param(NOW_S, {"n1": "first"}, 1.0, id="just now"),
        pytest.param(NOW_S - 0.75, {"n1": "first"}, 0.25, id="a moment ago"),
        pytest.param(NOW_S - 60, {"n1": "first"}, 0.0, id="long ago"),
        pytest.param(NOW_S, {}, 0.0, id="its node tells no boot"),
        pytest.param(None, {"n1": "first"}, 0.0, id="nobody saw the end"),
        pytest.param(NOW_S + 7200, {"n1": "first"}, 1.0, id="the clock stepped back by hours since"),
    ],
)
def test_how_long_a_failure_waits_for_what_its_node_tells(
    ended_s: float | None, boots: dict[str, str], expected: float
) -> None:
    rank = replace(pod(0, node="n1", state=PodState.FAILED, exit_code=1), ended_s=ended_s)
    now = replace(situation(Phase.RUNNING, rank), boots=boots)
    assert node_word_s(now, NOW_S) == pytest.approx(expected)
