"""Few monitoring ids, and pods whose threads other programs keep: who is measured, and what is said of the rest."""

from __future__ import annotations

import logging
import uuid

import pytest

from coda_agent.resctrl.counters import SELDOM_COUNTED
from coda_agent.resctrl.groups import GroupOutcome
from coda_agent.resctrl.pod_groups import ELSEWHERE, NOT_MEASURED
from coda_agent.throttling.followed_pods import MOST_READS, most_pods
from coda_lab.emulators.cgroups.kubelet import Quality
from coda_lab.emulators.node import EmulatedNode, Work
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.rig import Rig
from tests.agent.loop.test_contention import CALM_S, aggressor, victim

FEW = NOT_MEASURED[GroupOutcome.EXHAUSTED]


def last_by_uid(count: int) -> str:
    """A name whose pod comes after `light-0` to `light-<count>` by uid."""
    most = max(str(uuid.uuid5(uuid.NAMESPACE_DNS, f"light-{number}")) for number in range(count))
    names = (f"hog-{number}" for number in range(10_000))
    return next(name for name in names if str(uuid.uuid5(uuid.NAMESPACE_DNS, name)) > most)


def light(node: EmulatedNode, count: int) -> list[Work]:
    """Pods that do next to nothing."""
    return [node.start(f"light-{number}", cores=1, demand_cores=0.01) for number in range(count)]


def measured(rig: Rig) -> set[str]:
    """Names of the pods with a group."""
    groups = {group.removeprefix("coda-") for control in rig.node.machine.controls() for group in control.children}
    return {work.name for uid, work in rig.node.works.items() if uid in groups}


@pytest.mark.parametrize("comes_first", [True, False])
async def test_with_few_ids_the_aggressor_is_measured_and_throttled(make_rig: MakeRig, comes_first: bool) -> None:
    """Ids went by uid: DaemonSets and idle pods took them, and the aggressor was never found."""
    rig = make_rig("intel-few-ids")
    train, name = victim(rig.node), last_by_uid(30)
    if comes_first:
        light(rig.node, 30)
    await rig.run(CALM_S)
    hog = aggressor(rig.node, name)
    if not comes_first:
        light(rig.node, 30)
    await rig.run(90)
    assert name in rig.told("Throttled")
    assert {name} <= measured(rig)
    assert train.seen_share >= 0.95 * 0.9
    assert rig.node.limit_of(hog) == 24


async def test_only_pods_that_matter_take_ids(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.api.namespaces = frozenset()
    victim(rig.node)
    light(rig.node, 5)
    await rig.run(5)
    assert measured(rig) == {"train"}
    rig.api.namespaces = frozenset({"default"})
    await rig.run(5)
    assert measured(rig) == {"train", *(f"light-{number}" for number in range(5))}


async def test_a_lack_of_ids_is_said_once_and_is_in_the_profile(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig("intel-few-ids")
    light(rig.node, 30)
    with caplog.at_level(logging.WARNING):
        await rig.run(300)
    assert caplog.text.count(FEW) == 1
    assert FEW in rig.api.profiles[-1]["status"]["lacks"]
    assert len(measured(rig)) == 6


async def test_threads_that_others_keep_are_told_of(make_rig: MakeRig) -> None:
    """Else a node whose pods koordlet has classified would seem measured, and be blind."""
    rig = make_rig()
    work = rig.node.start("theirs", cores=4, quality=Quality.BURSTABLE)
    files = rig.node.files
    files.resctrl.mkdir("LS")
    files.resctrl.write("LS/tasks", f"{rig.node.kubelet.pods[work.uid].containers['main'].process}\n")
    await rig.run(70)
    assert ELSEWHERE in rig.api.profiles[-1]["status"]["lacks"]
    assert ELSEWHERE in rig.loop._logged


@pytest.mark.parametrize("busy_cores", [0.01, 2])
async def test_a_pod_that_the_hardware_does_not_count_blinds_nobody_while_it_sleeps(
    make_rig: MakeRig, busy_cores: float
) -> None:
    """AMD counts some groups at a time. One that works, and is counted nowhere, may be what fills the socket."""
    rig = make_rig("amd", numa_nodes=2, peak_gb_per_s={0: 160.0, 8: 160.0})
    work = rig.node.start("uncounted", cores=4, demand_cores=busy_cores, domain=8)
    rig.node.machine.switches.words[f"*coda-{work.uid}/mon_data/*"] = "Unavailable\n"
    victim(rig.node)
    await rig.run(CALM_S)
    for domain in (0, 1, 2, 3):
        aggressor(rig.node, f"hog-{domain}", domain, times_peak=1.5)
    await rig.run(120)
    assert bool(rig.told("Throttled")) is (busy_cores < 1)
    assert SELDOM_COUNTED in rig.api.profiles[-1]["status"]["lacks"]


async def test_a_throttle_stands_where_its_pods_never_ran_in_a_part_of_the_socket(make_rig: MakeRig) -> None:
    """Its group is Unavailable there. It was lifted every minute, because nothing could be measured."""
    rig = make_rig("amd-rome", numa_nodes=2, peak_gb_per_s={0: 40.0, 8: 40.0})
    victim(rig.node)
    await rig.run(CALM_S)
    aggressor(rig.node)
    await rig.run(150)
    assert rig.told("Throttled")
    released = [event["message"] for event in rig.api.events if event["reason"] == "ThrottleReleased"]
    assert not [message for message in released if "measured" in message]


@pytest.mark.parametrize(
    ("domains", "ids", "most"), [(2, None, 300), (24, None, 25), (2, 8, 6), (2, 2, 1), (0, None, MOST_READS)]
)
def test_reads_and_ids_bound_who_is_followed(domains: int, ids: int | None, most: int) -> None:
    assert most_pods(domains, ids) == most
