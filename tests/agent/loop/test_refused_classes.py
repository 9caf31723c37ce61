"""Other programs take the last class of service, or give it back, while the agent runs; or groups are not allowed."""

from __future__ import annotations

import errno

import pytest

from coda_agent.host.files import Tree
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.rig import Rig
from tests.agent.loop.test_contention import CALM_S, aggressor, is_untouched, victim


def take_all_classes(rig: Rig) -> list[str]:
    taken: list[str] = []
    while True:
        try:
            rig.node.files.resctrl.mkdir(f"class{len(taken)}")
        except OSError:
            return taken
        taken.append(f"class{len(taken)}")


async def test_without_a_class_of_service_cores_are_halved_also_if_it_was_taken_later(make_rig: MakeRig) -> None:
    rig = make_rig()
    assert rig.agent.abilities.limiting
    train = victim(rig.node)
    await rig.run(CALM_S)
    take_all_classes(rig)
    hog = aggressor(rig.node)
    await rig.run(90)
    assert rig.node.limit_of(hog) < 24
    assert train.seen_share >= 0.95 * 0.9
    assert {throttle.pod_uid for throttle in rig.agent.throttles} == {hog.uid}
    told = [event["message"] for event in rig.api.events if event["reason"] == "Throttled"]
    assert told
    assert all(message.startswith("CPU limit") for message in told)
    assert "(Exhausted): cores are halved instead" in rig.agent.lacks[-1]
    await rig.stop()
    rig.start()
    assert is_untouched(rig)


async def test_a_class_that_goes_while_its_throttle_is_checked_is_done_without(make_rig: MakeRig) -> None:
    """The check releases the throttle and its class. The limit cannot come back, so cores are halved."""
    rig = make_rig()
    train = victim(rig.node)
    await rig.run(CALM_S)
    hog = aggressor(rig.node)
    while not any("still needed" in event["message"] for event in rig.api.events):
        await rig.run(1)
    take_all_classes(rig)
    await rig.run(120)
    assert rig.node.limit_of(hog) < 24
    assert train.seen_share >= 0.95 * 0.9


async def test_a_class_of_service_that_is_free_again_is_used(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.kill()
    taken = take_all_classes(rig)
    rig.start()
    assert not rig.agent.abilities.limiting
    for name in taken:
        rig.node.files.resctrl.rmdir(name)
    await rig.run(62)
    assert rig.agent.abilities.limiting
    assert rig.agent.lacks == ()
    victim(rig.node)
    await rig.run(CALM_S)
    hog = aggressor(rig.node)
    await rig.run(60)
    assert "coda-throttle" in rig.node.machine.groups
    assert rig.node.limit_of(hog) == 24


async def test_where_a_class_was_free_none_is_made_to_look_for_it(make_rig: MakeRig) -> None:
    """For a moment another program would find none."""
    rig = make_rig()
    rig.node.machine.log.clear()
    await rig.run(200)
    assert not [line for line in map(str, rig.node.machine.log) if "mkdir" in line and "coda-throttle" in line]


@pytest.mark.parametrize("when", ["at the start", "later"])
async def test_where_groups_are_not_allowed_it_is_said_and_hardly_tried(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """SELinux or AppArmor refuse it, or the mount is read-only. Without groups no pod's traffic is known."""
    rig = make_rig()
    rig.kill()
    tried: list[str] = []

    def refuses(_tree: Tree, directory: str) -> None:
        tried.append(directory)
        raise OSError(errno.EACCES, "Permission denied", directory)

    if when == "later":
        rig.start()
    allowed = type(rig.node.files.resctrl).mkdir
    monkeypatch.setattr(type(rig.node.files.resctrl), "mkdir", refuses)
    if when == "at the start":
        rig.start()
    train = victim(rig.node)
    await rig.run(CALM_S)
    aggressor(rig.node)
    await rig.run(300)
    assert train.seen_share < 0.85
    assert not any("halved" in sentence for sentence in rig.agent.lacks)
    assert any("groups cannot be made in resctrl" in sentence for sentence in rig.agent.lacks)
    assert len(tried) <= 40
    if when == "at the start":
        assert rig.api.profiles[-1]["status"]["bandwidth"]["control"] == "None"
    monkeypatch.setattr(type(rig.node.files.resctrl), "mkdir", allowed)
    await rig.run(150)
    assert rig.agent.lacks == ()
    assert train.seen_share >= 0.95 * 0.9
