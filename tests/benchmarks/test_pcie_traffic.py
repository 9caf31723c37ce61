from __future__ import annotations

import pytest

from coda_agent.gpus.driver.gpus import Gpus
from coda_lab.emulators.nvml import NvmlState
from pcie_traffic import PcieMeter, PcieTraffic
from tests.agent.gpus.rig import NOW, advance, gpu, later
from tests.agent.gpus.rig import state as state
from tests.rigs import needs_gcc as needs_gcc

FIRST, SECOND = (gpu(number).uuid for number in range(2))


@pytest.fixture
def gpus(state: NvmlState) -> Gpus:
    gpus = Gpus()
    gpus.sense(NOW)
    return gpus


def count_from(state: NvmlState, uuid: str, sent_bytes: int) -> None:
    traffic = state.device(uuid).traffic
    traffic.counters, traffic.sent_bytes = True, sent_bytes
    state.write()


def test_counters_give_the_mean_rate_since_the_last_look(state: NvmlState, gpus: Gpus) -> None:
    with state.batch():
        for uuid in (FIRST, SECOND):
            count_from(state, uuid, 1 << 40)
            state.set_traffic(uuid, sent_bytes_per_s=5e9, received_bytes_per_s=1e9)
    meter = PcieMeter()
    assert meter.measure(gpus.open_devices(), NOW.monotonic_s) == {}
    advance(state, later(2))
    measured = meter.measure(gpus.open_devices(), NOW.monotonic_s + 2)
    assert sorted(measured) == [FIRST, SECOND]
    assert measured[FIRST].sent_bytes_per_s == pytest.approx(5e9)
    assert measured[FIRST].received_bytes_per_s == pytest.approx(1e9)


def test_counters_that_fell_give_nothing_once(state: NvmlState, gpus: Gpus) -> None:
    one = {FIRST: gpus.open_devices()[FIRST]}
    meter = PcieMeter()
    count_from(state, FIRST, (1 << 40) + 1000)
    meter.measure(one, 1.0)
    count_from(state, FIRST, (1 << 40) + 10)
    assert meter.measure(one, 2.0) == {}
    count_from(state, FIRST, (1 << 40) + 110)
    assert meter.measure(one, 3.0) == {FIRST: PcieTraffic(sent_bytes_per_s=100.0, received_bytes_per_s=0.0)}


def test_counters_that_may_wrap_unseen_are_not_believed(state: NvmlState, gpus: Gpus) -> None:
    one = {FIRST: gpus.open_devices()[FIRST]}
    meter = PcieMeter()
    state.set_traffic(FIRST, sent_bytes_per_s=1024e3, received_bytes_per_s=0)
    count_from(state, FIRST, 1000)
    meter.measure(one, 1.0)
    count_from(state, FIRST, 5000)
    assert meter.measure(one, 2.0) == {
        FIRST: PcieTraffic(sent_bytes_per_s=1024e3, received_bytes_per_s=0.0)
    }  # measured


def test_without_counters_devices_are_measured_in_turn(state: NvmlState, gpus: Gpus) -> None:
    state.set_traffic(FIRST, sent_bytes_per_s=1024e3, received_bytes_per_s=0)
    state.set_traffic(SECOND, sent_bytes_per_s=2048e3, received_bytes_per_s=0)
    meter = PcieMeter()
    turns = [meter.measure(gpus.open_devices(), float(second)) for second in range(3)]
    assert [list(turn) for turn in turns] == [[FIRST], [SECOND], [FIRST]]
    assert turns[1][SECOND].sent_bytes_per_s == pytest.approx(2048e3)


def test_a_device_without_any_measure_is_asked_no_more(state: NvmlState, gpus: Gpus) -> None:
    state.fail("nvmlDeviceGetPcieThroughput", 3, uuid=FIRST)
    meter = PcieMeter()
    turns = [meter.measure(gpus.open_devices(), float(second)) for second in range(4)]
    assert [list(turn) for turn in turns] == [[], [SECOND], [SECOND], [SECOND]]
