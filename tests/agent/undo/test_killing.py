"""An agent killed at any step leaves nothing behind once it is started again; nor does one that ends normally."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from coda_lab.emulators.cgroups.kubelet import Setup
from tests.agent.places import fresh_directory
from tests.agent.undo.killing import Killed, Steps
from tests.agent.undo.worlds import FOREIGN_CORES, UIDS, AgentStep, AgentWorld, Event, Kind, World, hold, throttle

KINDS = {
    "v2": Kind(),
    "v1-old": Kind(version=1, setup=Setup(has_systemd=False), profile="intel-mib", can_rename=False),
    "amd-crun": Kind(setup=Setup(has_subgroup=True), profile="amd"),
}


def sense(world: AgentWorld) -> object:
    world.sense()
    return ()


def acting(*steps: tuple[str, object]) -> Sequence[AgentStep]:
    """Agent steps by name: cores and bandwidth as numbers, the rest by what they are called."""
    return [_step(name, value) for name, value in steps]


def _step(name: str, value: object) -> AgentStep:
    if name == "sense":
        return sense
    if name == "uphold":
        return lambda world: world.actuator.restore_lost(frozenset(world.kubelet.pods))
    if name == "end":
        return lambda world: world.restore()
    return lambda world: world.actuator.carry_out(_action(world, name, value))


def _action(world: World, name: str, value: object):  # type: ignore[no-untyped-def]
    match name, value:
        case "hold", (int(number), float(cores)):
            return hold(number, cores)
        case "free", int(number):
            return hold(number, 8.0, ends=True)
        case "limit", (int(socket), tuple(pods), int(steps_down)):
            return throttle(world, socket, pods, steps_down)
        case "unlimit", (int(socket), tuple(pods)):
            return throttle(world, socket, pods, 0, ends=True)
    raise ValueError(name)


SCENARIOS = {
    "halve a pod": acting(("hold", (0, 5.0))),
    "halve it twice": acting(("hold", (0, 5.0)), ("hold", (0, 2.5))),
    "halve it twice and release a step": acting(("hold", (0, 5.0)), ("hold", (0, 2.5)), ("hold", (0, 5.0))),
    "halve it and give it back": acting(("hold", (0, 5.0)), ("free", 0)),
    "halve a pod without limit": acting(("hold", (1, 2.0)), ("free", 1)),
    "halve three pods": acting(("hold", (0, 5.0)), ("hold", (1, 2.0)), ("hold", (2, 2.0))),
    "limit a socket": acting(("sense", None), ("limit", (0, (0,), 1))),
    "limit it deeper, with a second pod": acting(("sense", None), ("limit", (0, (0,), 1)), ("limit", (0, (0, 1), 2))),
    "let one of two pods go": acting(("sense", None), ("limit", (0, (0, 1), 2)), ("limit", (0, (1,), 2))),
    "limit two sockets and free one": acting(
        ("sense", None), ("limit", (0, (0,), 1)), ("limit", (1, (0, 2), 2)), ("unlimit", (0, (0,)))
    ),
    "limit a socket and free it": acting(("sense", None), ("limit", (0, (0, 1), 3)), ("unlimit", (0, (0, 1)))),
    "both means, then an end in order": acting(
        ("sense", None), ("limit", (0, (0,), 1)), ("hold", (1, 2.0)), ("uphold", None), ("end", None)
    ),
}


def run_to_death(agent: AgentWorld, steps: Sequence[AgentStep], last: int | None) -> int:
    """Start an agent, let it act until step `last` kills it; gives how many steps there were."""
    counted = Steps(last)
    with suppress(Killed):
        agent.start_agent(counted)
        for step in steps:
            step(agent)
    agent.bury_agent()
    return counted.count


def assert_nothing_is_left(agent: AgentWorld, twin: World) -> None:
    agent.start_agent()
    assert agent.restored is not None
    assert agent.restored.failures == ()
    assert agent.open_entries == 0
    assert agent.state() == twin.state()
    agent.bury_agent()


schedules = 0


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("steps", SCENARIOS.values(), ids=SCENARIOS)
def test_killed_at_every_step_of_every_kind_of_action_nothing_is_left(kind: Kind, steps: Sequence[AgentStep]) -> None:
    global schedules
    twin = World(kind)
    total = run_to_death(AgentWorld(kind, fresh_directory()), steps, None)
    for last in range(1, total + 1):
        agent = AgentWorld(kind, fresh_directory())
        run_to_death(agent, steps, last)
        assert_nothing_is_left(agent, twin)
    schedules += total


def test_those_were_at_least_500_schedules() -> None:
    if schedules == 0:
        pytest.skip("only counts what ran before it")
    assert schedules >= 500


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("steps", SCENARIOS.values(), ids=SCENARIOS)
def test_what_was_acted_shows_on_the_node_and_an_end_in_order_undoes_it(
    kind: Kind, steps: Sequence[AgentStep], state: Path
) -> None:
    agent, before = AgentWorld(kind, state), World(kind).state()
    agent.start_agent()
    seen = [(step(agent) and agent.state()) or agent.state() for step in steps]
    assert any(one != before for one in seen)
    assert agent.restore().failures == ()
    assert agent.open_entries == 0
    assert agent.state() == before


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_on_a_full_disk_the_next_agent_undoes_everything_and_throttles_nobody(kind: Kind, state: Path) -> None:
    agent, before = AgentWorld(kind, state), World(kind).state()
    run_to_death(agent, SCENARIOS["both means, then an end in order"][:-1], None)
    assert agent.state() != before
    agent.disk_is_full = True
    agent.start_agent()
    assert agent.state() == before
    assert any("No space left" in problem for problem in agent.actuator.carry_out(hold(0, 5.0)))
    assert agent.state() == before
    agent.bury_agent()
    agent.disk_is_full = False
    agent.start_agent()
    assert (agent.state(), agent.open_entries) == (before, 0)


def youngest(world: World) -> int:
    return max(task.tid for task in world.tasks.all())


def stop_the_second_pod(world: World) -> None:
    if UIDS[1] in world.kubelet.pods:
        world.kubelet.stop(UIDS[1])


EVENTS: Sequence[Event] = (
    lambda world: world.kubelet.restart(UIDS[0], "main"),
    lambda world: world.kubelet.execute(UIDS[0], "main", 2),
    stop_the_second_pod,
    lambda world: world.kubelet.resize(UIDS[2], "main", FOREIGN_CORES),
    lambda world: world.kubelet.resize(UIDS[2], "main", 2 * FOREIGN_CORES),
    lambda world: world.kubelet.rewrite_qualities(),
    lambda world: world.tasks.clone(youngest(world), 2),
    lambda world: world.tasks.exit(youngest(world)),
)


def random_step(rng: random.Random) -> AgentStep:
    pods = tuple(sorted(rng.sample(range(3), rng.randint(1, 3))))
    socket, number = rng.randrange(2), rng.randrange(3)
    name, value = rng.choice(
        [
            ("sense", None),
            ("uphold", None),
            ("uphold", None),
            ("hold", (number, rng.choice([0.001, 0.5, 1.7, 3.0, 40.0]))),
            ("hold", (number, rng.choice([0.5, 1.7, 3.0]))),
            ("free", number),
            ("limit", (socket, pods, rng.randint(1, 4))),
            ("limit", (socket, pods, rng.randint(1, 4))),
            ("unlimit", (socket, pods)),
            ("end", None),
        ]
    )
    return _step(str(name), value)


@pytest.mark.parametrize("seed", range(250))
def test_in_any_order_with_any_neighbours_killed_twice_nothing_is_left(seed: int) -> None:
    rng = random.Random(seed)
    kind = rng.choice(list(KINDS.values()))
    agent, twin = AgentWorld(kind, fresh_directory()), World(kind)

    def happen(world: AgentWorld) -> None:
        event = rng.choice(EVENTS)
        for each in (world, twin):
            event(each)

    steps = [random_step(rng) if rng.random() < 0.7 else happen for _ in range(rng.randint(2, 14))]
    run_to_death(agent, steps, rng.randint(1, 120))
    run_to_death(agent, (), rng.randint(1, 25))
    assert_nothing_is_left(agent, twin)
