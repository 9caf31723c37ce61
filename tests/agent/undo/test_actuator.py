"""The eliminator's actions, on a node that refuses, loses and changes things."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from coda.contention import Action
from coda_agent.host.files import Files
from coda_agent.host.state_dir import StateDir
from coda_agent.host.undo_journal import ChangeKind, UndoJournal
from coda_agent.resctrl import GroupOutcome, Groups
from coda_agent.throttling.actuator import Actuator
from coda_agent.throttling.bandwidth_limits import BandwidthLimits, LimitInForce
from coda_lab.emulators.resctrl.profiles import Limiting
from tests.agent.undo.worlds import UIDS, AgentWorld, World, hold, throttle
from tests.agent.undo.worlds import Kind as NodeKind

GROUP = "coda-throttle"
PRESENT = frozenset(UIDS)


@pytest.fixture
def world(state: Path) -> AgentWorld:
    made = AgentWorld(NodeKind(), state)
    made.start_agent()
    made.sense()
    return made


def throttled(world: World) -> dict[str, int]:
    """How many threads of every pod are in the throttle group."""
    group = world.machine.groups.get(GROUP)
    closid = None if group is None else group.closid
    tasks = [task for task in world.tasks.all() if task.closid == closid and task.load in UIDS]
    return {uid: sum(task.load == uid for task in tasks) for uid in UIDS if any(task.load == uid for task in tasks)}


def limits(world: World) -> dict[int, int]:
    group = world.machine.groups.get(GROUP)
    return {} if group is None else dict(group.values["MB"])


def kinds(world: AgentWorld) -> list[tuple[ChangeKind, str]]:
    assert world._journal is not None
    return [(entry.kind, entry.target) for entry in world._journal.entries]


def test_a_socket_s_limit_holds_the_pods_named_with_all_their_threads(world: AgentWorld) -> None:
    assert world.actuator.carry_out(throttle(world, 1, (0,), 3)) == ()
    assert (limits(world), throttled(world)) == ({0: 100, 1: 70}, {UIDS[0]: 3})
    assert kinds(world) == [(ChangeKind.BANDWIDTH, "1"), (ChangeKind.GROUP, UIDS[0])]


def test_the_group_has_the_pods_of_all_standing_throttles(world: AgentWorld) -> None:
    for action in (throttle(world, 0, (0, 2), 1), throttle(world, 1, (2,), 2), throttle(world, 0, (0,), 0, ends=True)):
        assert world.actuator.carry_out(action) == ()
    assert (limits(world), list(throttled(world))) == ({0: 100, 1: 80}, [UIDS[2]])
    assert world.actuator.carry_out(throttle(world, 1, (2,), 0, ends=True)) == ()
    assert (limits(world), throttled(world), kinds(world)) == ({}, {}, [])


@pytest.mark.parametrize("action", [throttle(World(NodeKind()), 0, (0, 1), 2), hold(0, 3.0)], ids=["limit", "hold"])
def test_the_same_again_changes_nothing(world: AgentWorld, action: Action) -> None:
    world.actuator.carry_out(action)
    machine, cgroups = list(world.machine.log), list(world.tree.log)
    assert (world.actuator.carry_out(action), world.actuator.restore_lost(PRESENT)) == ((), ())
    assert (world.machine.log, world.tree.log) == (machine, cgroups)


def test_a_thread_that_another_program_watches_stays_with_it(world: AgentWorld) -> None:
    world.actuator.carry_out(throttle(world, 0, (1,), 2))
    (watched,) = [task for task in world.tasks.all() if "theirs" in world.machine.groups_of(task).split("mon:")[1]]
    assert watched.load == UIDS[1]


def test_a_group_that_somebody_removed_is_made_again_in_the_next_window(world: AgentWorld) -> None:
    world.actuator.carry_out(throttle(world, 0, (0,), 4))
    world.files.resctrl.rmdir(GROUP)
    assert world.actuator.restore_lost(PRESENT) == ()
    world.sense(recheck=True)
    assert (limits(world), list(throttled(world))) == ({0: 60, 1: 100}, [UIDS[0]])


def test_a_limit_that_somebody_raised_is_set_again(world: AgentWorld) -> None:
    world.actuator.carry_out(throttle(world, 0, (0,), 4))
    world.files.resctrl.write(f"{GROUP}/schemata", "MB:0=100\n")
    world.actuator.restore_lost(PRESENT)
    assert limits(world)[0] == 60


def test_a_limit_that_the_hardware_rounds_is_not_written_every_window(world: AgentWorld) -> None:
    action = replace(throttle(world, 0, (0,), 4), value=55)
    world.actuator.carry_out(action)
    written = list(world.machine.log)
    world.actuator.restore_lost(PRESENT)
    assert (limits(world)[0], world.machine.log) == (60, written)


def test_pods_that_ended_are_in_no_throttle(world: AgentWorld) -> None:
    world.actuator.carry_out(throttle(world, 0, (1,), 4))
    world.actuator.carry_out(hold(1, 1.0))
    world.kubelet.stop(UIDS[1])
    assert world.actuator.restore_lost(PRESENT - {UIDS[1]}) == ()
    assert (limits(world), kinds(world)) == ({}, [])


def test_a_limit_of_cores_that_could_not_be_given_back_is_tried_again_with_every_window(world: AgentWorld) -> None:
    world.actuator.carry_out(hold(2, 1.0))
    world.tree.switches.errors["write *"] = errno.EIO
    (sentence,) = world.actuator.carry_out(hold(2, 4.0, ends=True))
    assert "cannot be put back" in sentence
    assert len(world.actuator.restore_lost(PRESENT)) == 1
    world.tree.switches.errors.clear()
    assert world.actuator.restore_lost(PRESENT) == ()
    assert (world.state()["limits"], kinds(world)) == (World(NodeKind()).state()["limits"], [])


@pytest.mark.parametrize(
    ("pattern", "number", "words"),
    [
        ("mkdir coda-throttle", errno.ENOSPC, "no class of service"),
        ("mkdir coda-throttle", errno.EBUSY, "tried again"),
        ("mkdir coda-throttle", errno.EPERM, "cannot do it"),
        ("write coda-throttle/schemata", errno.EIO, "cannot be limited as decided"),
        ("rename *", errno.EIO, "cannot be limited as decided"),
    ],
)
def test_what_the_hardware_refuses_is_said_and_done_once_it_can_be(
    world: AgentWorld, pattern: str, number: int, words: str
) -> None:
    world.machine.switches.errors[pattern] = number
    (sentence,) = world.actuator.carry_out(throttle(world, 0, (0,), 4))
    assert words in sentence
    assert throttled(world) == {}
    world.machine.switches.errors.clear()
    assert world.actuator.restore_lost(PRESENT) == ()
    assert (limits(world)[0], list(throttled(world))) == (60, [UIDS[0]])


def test_classes_of_service_that_are_all_taken_leave_the_node_as_it_is(state: Path) -> None:
    world = AgentWorld(NodeKind(), state)
    world.machine.profile = replace(world.machine.profile, limiting=Limiting(closids=8))
    for number in range(6):
        world.files.resctrl.mkdir(f"LS{number}")
    world.start_agent()
    before = world.state()
    (sentence,) = world.actuator.carry_out(throttle(world, 0, (0,), 1))
    assert "no class of service" in sentence
    assert (world.state(), kinds(world)) == (before, [])


class OtherLimits(Groups):
    """`root`: the domains in which the root still has a limit. `group`: the throttle group."""

    root = frozenset({0, 1})
    group = frozenset({0, 1})

    def limits(self) -> Mapping[int, int]:
        return {domain: value for domain, value in super().limits().items() if domain in self.group}

    def root_limits(self) -> Mapping[int, int]:
        return {domain: value for domain, value in super().root_limits().items() if domain in self.root}

    def set_limit(self, domain: int, value: int) -> int:
        if domain not in self.root:
            raise OSError(errno.EINVAL, "Invalid argument")
        return super().set_limit(domain, value)


@pytest.fixture
def two_limits(world: AgentWorld) -> tuple[BandwidthLimits, OtherLimits]:
    groups = OtherLimits(world.files)
    assert world._journal is not None
    made = BandwidthLimits(groups, world._journal, lambda entry: entry, lambda _uid: frozenset())
    pods = frozenset({UIDS[0]})
    assert made.apply({0: LimitInForce(value=50, pods=pods), 1: LimitInForce(value=50, pods=pods)}) == ()
    return made, groups


@pytest.mark.parametrize("wanted", [{}, {1: 50}], ids=["all are lifted", "one is lifted"])
def test_a_domain_that_goes_between_two_reads_does_no_harm(
    two_limits: tuple[BandwidthLimits, OtherLimits], world: AgentWorld, wanted: dict[int, int]
) -> None:
    made, groups = two_limits
    groups.root = frozenset({1})
    pods = frozenset({UIDS[0]})
    assert made.apply({domain: LimitInForce(value=value, pods=pods) for domain, value in wanted.items()}) == ()
    assert limits(world).get(1) == wanted.get(1)


def test_a_domain_that_is_gone_holds_up_no_other(
    two_limits: tuple[BandwidthLimits, OtherLimits], world: AgentWorld
) -> None:
    made, groups = two_limits
    groups.root = groups.group = frozenset({1})
    pods = frozenset({UIDS[1]})
    (sentence,) = made.apply({0: LimitInForce(value=40, pods=pods), 1: LimitInForce(value=40, pods=pods)})
    assert "domain 0 is not there" in sentence
    assert limits(world)[1] == 40
    assert list(throttled(world)) == [UIDS[1]]


def test_a_full_journal_stops_every_action_before_it_is_made(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.state()["limits"], throttled(world)
    monkeypatch.setattr(StateDir, "append", raise_no_space)
    problems = [world.actuator.carry_out(action) for action in (hold(0, 1.0), throttle(world, 0, (0,), 1))]
    assert [len(one) for one in problems] == [1, 1]
    assert all("No space left" in sentence for (sentence,) in problems)
    assert (world.state()["limits"], throttled(world)) == before
    assert limits(world) in ({}, {0: 100, 1: 100})


def test_a_failure_for_a_moment_is_no_refusal_also_after_one(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_groups: Groups) -> GroupOutcome:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Groups, "add_throttle", lambda _groups: GroupOutcome.EXHAUSTED)
    assert world.actuator.carry_out(throttle(world, 0, (0,), 1))
    assert world.actuator.refuses_bandwidth
    monkeypatch.setattr(Groups, "add_throttle", fails)
    assert world.actuator.carry_out(throttle(world, 0, (0,), 1))
    assert not world.actuator.refuses_bandwidth


def test_an_action_that_failed_is_handed_back_once_when_it_is_in_force(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions = throttle(world, 0, (0,), 1), hold(1, 1.0)
    with monkeypatch.context() as full:
        full.setattr(StateDir, "append", raise_no_space)
        assert all(world.actuator.carry_out(action) for action in actions)
        assert len(world.actuator.restore_lost(PRESENT)) == 2
        assert world.actuator.take_late() == ()
    assert world.actuator.restore_lost(PRESENT - {UIDS[1]}) == ()
    assert world.actuator.take_late() == actions[:1]  # the other one's pod is gone
    assert world.actuator.restore_lost(PRESENT) == ()
    assert world.actuator.take_late() == ()


def raise_no_space(self: StateDir, name: str, record: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_without_means_every_action_is_refused_in_a_sentence(state: Path) -> None:
    journal = UndoJournal(StateDir(state))
    files = Files(cgroup=state, proc=state, resctrl=state)
    bare = Actuator(files=files, layout=None, groups=None, journal=journal, now_s=lambda: 0.0, boot_id="boot")
    assert bare.carry_out(hold(0, 1.0)) == ("no cgroups of pods were found on this node",)
    assert bare.carry_out(throttle(World(NodeKind()), 0, (0,), 1)) == ("this node cannot limit memory bandwidth",)
    assert bare.restore_lost(PRESENT) == ()
