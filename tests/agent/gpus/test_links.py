from __future__ import annotations

import pytest

from coda_agent.gpus.devices import Link, LinkPath
from coda_agent.gpus.driver.gpus import Gpus
from coda_agent.gpus.driver.links import find_links
from coda_lab.emulators.nvml import NvmlState
from tests.agent.gpus.rig import NOW, gpu

FIRST, SECOND, THIRD = (gpu(number).uuid for number in range(3))
SWITCH = "00000000:C1:00.0"


@pytest.fixture
def gpus(state: NvmlState) -> Gpus:
    gpus = Gpus()
    gpus.sense(NOW)
    return gpus


def test_pairs_know_their_path_and_nvlinks(state: NvmlState) -> None:
    with state.batch():
        state.add(gpu(2))
        state.set_ancestor(0, 1, 10)
        state.set_ancestor(0, 2, 40)
        state.device(FIRST).nvlinks = {0: gpu(1).pci_bus_id, 1: gpu(1).pci_bus_id, 2: ""}
        state.device(SECOND).nvlinks = {0: gpu(0).pci_bus_id, 1: gpu(0).pci_bus_id}
    gpus = Gpus()
    gpus.sense(NOW)
    assert find_links(gpus.open_devices()) == (
        Link(one=FIRST, other=SECOND, path=LinkPath.SWITCH, nvlinks=2),
        Link(one=FIRST, other=THIRD, path=LinkPath.NUMA_NODE, nvlinks=0),
        Link(one=SECOND, other=THIRD, path=LinkPath.SYSTEM, nvlinks=0),
    )


def test_links_to_switches_count_where_the_pair_reaches_each_other_through_them(state: NvmlState, gpus: Gpus) -> None:
    state.device(FIRST).nvlinks = dict.fromkeys(range(18), SWITCH)
    state.device(SECOND).nvlinks = dict.fromkeys(range(12), SWITCH)
    state.write()
    assert find_links(gpus.open_devices())[0].nvlinks == 12
    assert find_links(gpus.open_devices())[0].is_switched


def test_a_pair_that_cannot_be_asked_is_left_out(state: NvmlState, gpus: Gpus) -> None:
    state.lose(FIRST)
    assert find_links(gpus.open_devices()) == ()


def test_a_driver_that_tells_no_topology_leaves_the_path_open(state: NvmlState, gpus: Gpus) -> None:
    state.fail("nvmlDeviceGetTopologyCommonAncestor", 3)
    assert find_links(gpus.open_devices()) == (Link(one=FIRST, other=SECOND, path=None, nvlinks=0),)
