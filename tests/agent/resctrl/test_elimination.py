"""The core's eliminator on the emulated hardware, through the driver: measured, throttled, and released."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from coda.contention import (
    Action,
    ContentionConfig,
    EliminatorState,
    Hardware,
    Means,
    PodSample,
    TrainingSample,
    Window,
    observe,
)
from coda_agent.resctrl.counters import TrafficMeter
from coda_agent.resctrl.groups import GroupOutcome, Groups
from coda_agent.resctrl.probe import limits_by_domain, probe_abilities
from coda_lab.emulators.load import Gpus, Trainer
from coda_lab.emulators.resctrl.traffic import served_shares
from tests.emulated import Emulated
from tests.rigs import Emulate

CONFIG = ContentionConfig()
SOCKET = 0


@dataclass(slots=True)
class Node:
    """A victim that trains on socket 0, an aggressor that may come there, and the loop in between."""

    tree: Emulated
    groups: Groups = field(init=False)
    meter: TrafficMeter = field(init=False)
    hardware: Hardware = field(init=False)
    gpus: Gpus = field(default_factory=lambda: Gpus(Trainer(best=0.9, cores_needed=4, noise=0.01), seed=3))
    memory: EliminatorState = field(default_factory=EliminatorState)
    actions: list[tuple[float, Action]] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        abilities = probe_abilities(self.tree.files)
        self.peak = self.tree.machine.profile.peak_bytes_per_s
        peaks = dict.fromkeys(abilities.domains, self.peak)
        self.hardware = Hardware(peak_bytes_per_s=peaks, limits=limits_by_domain(abilities, peaks))
        self.groups = Groups(self.tree.files)
        self.meter = TrafficMeter(self.tree.files, abilities.domains[:2])  # of AMD's eight, to save time
        self.tree.load("victim", gb_per_s=self.peak / 1e9 / 5, cores=8)

    peak: float = field(init=False)

    @property
    def now_s(self) -> float:
        return self.tree.machine.now_s

    def aggressor(self, *, demand: float) -> None:
        """A pod whose demand is this part of the peak."""
        cores = 2 * self.peak / self.tree.machine.profile.core_bytes_per_s
        self.tree.load("bully", gb_per_s=demand * self.peak / 1e9, cores=cores, threads=4)
        self.groups.add_pod("bully")

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.tree.advance(1)
            self.groups.collect_threads("bully", self.tree.tids_of("bully"))
            traffic = self.meter.sample(self.now_s)
            self.shares.append(self.gpus.period(4, served_shares(self.tree.machine)["victim"]))
            window = Window(
                at_s=self.now_s,
                share_by_socket={
                    socket: None if total is None else total / self.peak for socket, total in traffic.totals.items()
                },
                pods=[
                    PodSample(
                        uid=uid,
                        bytes_per_s={socket: rate for socket, rate in rates.items() if rate is not None},
                        cores=self.tree.machine.loads[uid].cores,
                    )
                    for uid, rates in traffic.by_pod.items()
                ],
                jobs=[TrainingSample(job="victim", sockets=frozenset({SOCKET}), cores=4, share=self.shares[-1])],
            )
            self.memory, actions = observe(self.memory, window, self.hardware, CONFIG)
            self.act(actions)

    def act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self.actions.append((self.now_s, action))
            if action.means is Means.CORES:
                load = self.tree.machine.loads[action.pods[0]]
                self.tree.machine.loads[load.name] = replace(load, cores=action.value)
                continue
            assert self.groups.add_throttle() is GroupOutcome.DONE
            assert self.groups.set_limit(action.socket, int(action.value)) == action.value
            move = self.groups.release_pod if action.ends else self.groups.throttle_pod
            for uid in action.pods:
                assert move(uid, self.tree.tids_of(uid)) is GroupOutcome.DONE

    def busy(self, seconds: int) -> float:
        latest = self.shares[-seconds:]
        return sum(latest) / len(latest)


@pytest.mark.parametrize(
    ("profile", "means"),
    [
        ("intel", Means.BANDWIDTH),
        ("intel-per-thread", Means.BANDWIDTH),
        ("intel-mib", Means.BANDWIDTH),
        ("amd", Means.BANDWIDTH),
        ("snc2", Means.BANDWIDTH),
        ("mbm-only", Means.CORES),
    ],
)
def test_the_aggressor_is_held_back_while_the_victim_suffers_and_set_free_after(
    emulate: Emulate, profile: str, means: Means
) -> None:
    node = Node(emulate(profile))
    node.run(120)
    baseline = node.busy(60)
    assert node.actions == []

    node.aggressor(demand=1.6)
    came_s = node.now_s
    node.run(180)
    assert {action.means for _, action in node.actions} == {means}
    assert node.actions[0][0] - came_s <= 8  # the GPUs show it a period later; then 5 s
    assert node.busy(30) >= 0.95 * baseline

    acted = len(node.actions)
    node.run(600)
    assert len(node.actions) - acted <= 2

    acted = len(node.actions)
    bully = node.tree.machine.loads["bully"]
    node.tree.machine.loads["bully"] = replace(bully, bytes_per_s=0.02 * node.peak)
    ended_s = node.now_s
    node.run(240)
    assert node.actions[acted][0] - ended_s <= 75
    assert node.memory.throttles == ()
    assert node.groups.grouped_pods().throttled == frozenset()
    assert set(node.groups.limits().values()) <= set(node.groups.root_limits().values())


@pytest.mark.parametrize("profile", ["mba-only", "l3-only", "not-mounted"])
def test_without_monitoring_nothing_is_done(emulate: Emulate, profile: str) -> None:
    node = Node(emulate(profile))
    node.run(60)
    node.aggressor(demand=1.6)
    node.run(60)
    assert node.actions == []
    assert node.tree.machine.log == []


def test_words_in_place_of_numbers_freeze_what_is_done(intel: Emulated) -> None:
    node = Node(intel)
    node.run(120)
    node.aggressor(demand=1.6)
    intel.machine.switches.words = {"mon_data/*": "Unavailable\n", "*/mon_data/*": "Unavailable\n"}
    node.run(60)
    assert node.actions == []
