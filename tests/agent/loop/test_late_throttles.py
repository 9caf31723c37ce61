"""A throttle that fails at first is told once it is in force, and never as over if it was not."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from coda_agent.resctrl.groups import GroupOutcome, Groups
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.rig import Rig
from tests.agent.loop.test_contention import CALM_S, aggressor, victim


def told_of(rig: Rig, pod: str, means: str = "memory bandwidth") -> list[str]:
    """The reasons of the events on a pod about its memory bandwidth, or its CPU limit."""
    events = [event for event in rig.api.events if event["involvedObject"]["name"] == pod]
    return [event["reason"] for event in events if event["message"].startswith(means)]


async def until_told(rig: Rig, words: str) -> None:
    while not any(words in event["message"] for event in rig.api.events):
        await rig.run(1)


class HeldTree:
    """Another program holds the tree's lock while `is_on`, as pqos does."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_on = False
        tree = type(rig.node.files.resctrl)
        locked = tree.locked

        def hold(one: Any) -> Any:
            if self.is_on:
                raise BlockingIOError
            return locked(one)

        monkeypatch.setattr(tree, "locked", hold)


async def test_a_throttle_that_another_program_held_up_is_told_when_it_is_in_force(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    held = HeldTree(rig, monkeypatch)
    victim(rig.node)
    await rig.run(CALM_S)
    hog = aggressor(rig.node)
    await until_told(rig, "still needed")
    told = len(told_of(rig, "hog"))
    counted = rig.metric("coda_agent_actions_total", means="Bandwidth", reason="Contended") or 0.0
    held.is_on = True
    problems = rig.metric("coda_agent_problems_total")
    while rig.metric("coda_agent_problems_total") == problems:
        await rig.run(1)
    assert told_of(rig, "hog")[told:] == []
    held.is_on = False
    await rig.run(3)
    assert rig.node.machine.groups["coda-throttle"].values["MB"][0] < 100
    assert hog.uid in {throttle.pod_uid for throttle in rig.agent.throttles}
    assert told_of(rig, "hog")[told:] == ["Throttled"]
    assert rig.metric("coda_agent_actions_total", means="Bandwidth", reason="Contended") == counted + 1


async def test_cores_that_could_not_be_lowered_at_first_are_told_when_they_are(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig("mbm-only")
    victim(rig.node)
    await rig.run(CALM_S)
    tree, left = type(rig.node.files.cgroup), [True]
    write = tree.write

    def fails_once(one: Any, path: str, *words: Any) -> Any:
        if one is rig.node.files.cgroup and left and path.endswith("cpu.max"):
            left.clear()
            raise OSError(errno.EIO, "Input/output error", path)
        return write(one, path, *words)

    monkeypatch.setattr(tree, "write", fails_once)
    hog = aggressor(rig.node)
    while left:
        await rig.run(1)
    await rig.run(1)
    assert rig.node.limit_of(hog) < 24
    assert told_of(rig, "hog", "CPU limit")[:1] == ["Throttled"]


async def test_what_was_never_in_force_is_told_neither_as_made_nor_as_over(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    victim(rig.node)
    await rig.run(CALM_S)
    HeldTree(rig, monkeypatch).is_on = True
    aggressor(rig.node)
    await rig.run(120)
    assert rig.metric("coda_agent_problems_total")  # 1 or more
    assert rig.api.events == []


@pytest.mark.parametrize("other_first", [False, True])
async def test_a_refused_throttle_is_not_told_as_over(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, other_first: bool
) -> None:
    """Also while another socket has one."""
    rig = make_rig()
    victim(rig.node, "train-1", domain=1)
    victim(rig.node)
    await rig.run(CALM_S)
    if other_first:
        aggressor(rig.node, "hog-1", domain=1)
        await rig.run(20)
        assert told_of(rig, "hog-1")[:1] == ["Throttled"]
    monkeypatch.setattr(Groups, "add_throttle", lambda _groups: GroupOutcome.EXHAUSTED)
    aggressor(rig.node)
    await rig.run(15)
    assert told_of(rig, "hog") == []


async def test_what_was_told_as_made_and_is_refused_at_its_next_step_is_told_as_over(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    victim(rig.node)
    await rig.run(CALM_S)
    aggressor(rig.node, times_peak=3)
    while not told_of(rig, "hog"):
        await rig.run(1)
    monkeypatch.setattr(Groups, "add_throttle", lambda _groups: GroupOutcome.EXHAUSTED)
    await rig.run(30)
    *made, released = told_of(rig, "hog")
    assert (set(made), released) == ({"Throttled"}, "ThrottleReleased")
