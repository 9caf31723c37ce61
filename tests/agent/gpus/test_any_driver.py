"""For every answer of a driver, a round ends with a snapshot that can be believed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coda_agent.gpus.devices import Health, LibraryState
from coda_agent.gpus.driver.gpus import Gpus
from coda_agent.gpus.driver.links import find_links
from coda_lab.emulators.nvml import NvmlState
from tests.agent.gpus.rig import NOW, advance, gpu, later

CALLS = (
    "*",
    "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetNvLinkState",
)
codes = st.one_of(st.integers(1, 40), st.sampled_from([0, 0, 15, 999]))
events = st.one_of(
    st.tuples(st.just("fail"), st.sampled_from(CALLS), codes, st.sampled_from([None, 0, 1])),
    st.tuples(st.just("lose"), st.sampled_from([0, 1]), st.sampled_from([0, 15, 16, 999])),
    st.tuples(st.just("driver"), st.sampled_from(["reload", "unload", "other"])),
    st.tuples(st.just("jump"), st.integers(-5000, 5000)),
)


def happen(state: NvmlState, event: tuple[object, ...]) -> float:
    """Let it happen; the seconds by which the wall clock is off from now on."""
    match event:
        case ("fail", str(call), int(code), int() | None as number):
            state.fail(call, code, uuid=None if number is None else gpu(number).uuid)
        case ("lose", int(number), int(code)):
            state.lose(gpu(number).uuid, code)
        case ("driver", "unload"):
            state.unload_driver()
        case ("driver", kind):
            state.reload_driver("580.10.01" if kind == "other" else "570.86.15")
        case ("jump", int(seconds)):
            return float(seconds)
    return 0.0


@example(schedule=[None, ("fail", "*", 2, None)])
@given(schedule=st.lists(st.one_of(st.none(), events), max_size=12))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_driver_makes_it_raise_or_say_what_cannot_be(
    state: NvmlState, schedule: list[tuple[object, ...] | None]
) -> None:
    _mend(state)
    gpus, off_s = Gpus(), 0.0
    try:
        for second, event in enumerate(schedule):
            off_s += happen(state, event) if event else 0.0
            moment = advance(state, later(second, jump_s=off_s))
            snapshot = gpus.sense(moment)
            for reading in snapshot.readings:
                if reading.health is Health.READY:
                    assert snapshot.library is LibraryState.READY
                if reading.health is not Health.READY:
                    assert (reading.share, reading.samples) == (None, ())
                assert all(0 <= sample.share <= 1 for sample in reading.samples)
                assert all(sample.at_s <= moment.monotonic_s for sample in reading.samples)
            find_links(gpus.open_devices())
        _recovers(state, gpus, len(schedule), off_s)
    finally:
        gpus.close()


def _mend(state: NvmlState) -> None:
    with state.batch():
        for call in CALLS:
            for uuid in (None, gpu(0).uuid, gpu(1).uuid):
                state.fail(call, 0, uuid=uuid)
        for number in range(2):
            state.lose(gpu(number).uuid, 0)
            state.set_utilisation(gpu(number).uuid, 0.6, at_us=0)
        state.reload_driver("570.86.15")


def _recovers(state: NvmlState, gpus: Gpus, second: int, off_s: float) -> None:
    """Once the driver is well, so are the readings: within the longest pause and the settling after it."""
    _mend(state)
    for later_s in (second + 70, second + 140, second + 145, second + 150):
        snapshot = gpus.sense(advance(state, later(later_s, jump_s=off_s)))
    assert [reading.health for reading in snapshot.readings] == [Health.READY, Health.READY]
    assert [reading.share for reading in snapshot.readings] == pytest.approx([0.6, 0.6])


def test_a_name_that_is_no_text_costs_only_the_name(state: NvmlState) -> None:
    state.device(gpu(0).uuid).name = "NAME"
    state.write()
    state.path.write_bytes(state.path.read_bytes().replace(b"NAME", b"\xff\xfe"))
    gpus = Gpus()
    gpus.sense(NOW)
    first = gpus.sense(replace(NOW, monotonic_s=NOW.monotonic_s + 10)).readings[0]
    assert (first.gpu.name, first.health) == ("unknown", Health.READY)
