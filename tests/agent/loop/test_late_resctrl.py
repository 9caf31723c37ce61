"""Hardware that changes under a running agent: resctrl mounted later, CPUs and domains that come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda_lab.emulators.cgroups.file_access import files_over
from coda_lab.emulators.cgroups.kubelet import Kubelet, Quality, Setup
from coda_lab.emulators.node import MAIN
from coda_lab.emulators.resctrl.profiles import PROFILES
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.rig import Rig
from tests.agent.loop.test_contention import CALM_S, aggressor, victim


@pytest.mark.parametrize("waits_s", [61])
async def test_a_resctrl_that_is_mounted_later_is_used(make_rig: MakeRig, waits_s: int) -> None:
    rig = make_rig("not-mounted")
    node = rig.node
    train = victim(node)
    await rig.run(5)
    assert not rig.agent.abilities.monitoring
    node.machine.profile = replace(PROFILES["not-mounted"], is_mounted=True)
    node.files.resctrl = files_over(cgroup=node.tree, proc=node.proc, machine=node.machine).resctrl
    await rig.run(waits_s)
    assert rig.agent.abilities.monitoring
    assert rig.agent.abilities.limiting
    await rig.run(CALM_S)
    aggressor(node)
    await rig.run(90)
    assert "hog" in rig.told("Throttled")
    assert train.seen_share >= 0.95 * 0.9
    assert rig.api.profiles[-1]["status"]["bandwidth"]["measured"] is True


async def test_pods_are_found_after_the_kubelet_has_changed_its_driver(make_rig: MakeRig) -> None:
    """The agent began before the first pod in the new root."""
    rig = make_rig()
    node = rig.node
    left = node.kubelet.start("0a1b2c3d-1111-4222-8333-444455556666", Quality.BURSTABLE, {MAIN: 2.0})
    for container in list(left.containers.values()):
        node.kubelet._end(container)
    node.kubelet = Kubelet(node.tree, Setup(has_systemd=False))
    victim(node)
    await rig.run(CALM_S)
    aggressor(node)
    await rig.run(90)
    assert "hog" in rig.told("Throttled")


async def test_cpus_that_come_are_in_the_profile(make_rig: MakeRig) -> None:
    rig = make_rig()
    await rig.run(5)
    before = rig.agent.topology.cores
    cache = rig.folder / f"sys/devices/system/cpu/cpu{before}/cache/index3"
    cache.mkdir(parents=True)
    (cache / "id").write_text("1\n")
    await rig.run(130)
    assert rig.agent.topology.cores == before + 1
    assert rig.api.profiles[-1]["status"]["cores"] == before + 1


async def test_nothing_is_probed_while_throttles_are_in_force(make_rig: MakeRig) -> None:
    """A new actuator would not know of them."""
    rig = make_rig()
    victim(rig.node)
    await rig.run(CALM_S)
    aggressor(rig.node)
    await rig.run(30)
    assert rig.agent.throttles
    actuator, rig.agent._looked_at_s = rig.agent._actuator, float("-inf")
    cache = rig.folder / "sys/devices/system/cpu/cpu999/cache/index3"
    cache.mkdir(parents=True)
    (cache / "id").write_text("1\n")
    await rig.run(3)
    assert rig.agent.throttles
    assert rig.agent._actuator is actuator


async def test_pods_are_followed_no_more_once_another_program_counts_by_cpu(make_rig: MakeRig) -> None:
    rig = make_rig()
    victim(rig.node)
    await rig.run(10)
    assert coda_groups(rig)
    rig.node.files.resctrl.mkdir("mon_groups/pqos-1")
    rig.node.machine.switches.words["mon_groups/pqos-1/cpus_list"] = "4-7"
    await rig.run(61)
    assert coda_groups(rig) == []
    assert rig.agent.lacks[-1].startswith("mon_groups/pqos-1 of another program counts what runs on its CPUs")
    rig.node.files.resctrl.rmdir("mon_groups/pqos-1")
    await rig.run(61)
    assert coda_groups(rig)


def coda_groups(rig: Rig) -> list[str]:
    tree = rig.node.files.resctrl
    places = [name for name in (".", "mon_groups", "coda-throttle/mon_groups") if tree.exists(name)]
    return [name for place in places for name in tree.directories(place) if name.startswith("coda-")]
