"""The errors that the driver reports of a GPU: each is told once, and where none can be, that is one sentence."""

from __future__ import annotations

import pytest

from coda_agent.gpus.devices import GpuXid, Health, LibraryState
from coda_agent.gpus.driver.gpus import Gpus
from coda_agent.gpus.driver.xid_events import MOST_AT_ONCE
from coda_lab.emulators.nvml import NvmlState, Slice
from tests.agent.gpus.rig import NOW, advance, gpu, later

FIRST, SECOND = gpu(0).uuid, gpu(1).uuid


def test_an_error_is_told_once_with_its_device(state: NvmlState) -> None:
    state.raise_xid(FIRST, 48)  # before anybody watched: as with NVML, nobody is told
    gpus = Gpus()
    assert gpus.sense(NOW).xids == ()
    state.raise_xid(SECOND, 79)
    state.raise_xid(FIRST, 31)
    state.raise_xid(SECOND, 79)
    told = gpus.sense(advance(state, later(1))).xids
    assert [(one.uuid, one.xid) for one in told] == [(SECOND, 79), (FIRST, 31), (SECOND, 79)]
    assert gpus.sense(advance(state, later(2))).xids == ()


def test_the_error_of_a_gpu_that_is_lost_by_it_is_told(state: NvmlState) -> None:
    gpus = Gpus()
    gpus.sense(NOW)
    state.raise_xid(FIRST, 79)
    state.lose(FIRST)
    found = gpus.sense(advance(state, later(1)))
    assert found.xids == (GpuXid(uuid=FIRST, xid=79),)
    assert [one.health for one in found.readings if one.gpu.uuid == FIRST] == [Health.LOST]


def test_the_slice_is_told_where_the_driver_names_it(state: NvmlState) -> None:
    with state.batch():
        device = state.device(FIRST)
        device.mig = True
        device.slices = [Slice(slot=0, uuid="MIG-a", gpu_instance=3)]
    gpus = Gpus()
    gpus.sense(NOW)
    state.raise_xid(FIRST, 94, instance=(3, 0))
    assert gpus.sense(later(1)).xids == (GpuXid(uuid=FIRST, xid=94, gpu_instance=3, compute_instance=0),)


@pytest.mark.parametrize("call", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents"])
@pytest.mark.parametrize("code", [3, 4, 13])
def test_where_errors_are_not_told_it_is_one_sentence_and_all_else_is_measured(
    state: NvmlState, call: str, code: int
) -> None:
    state.fail(call, code)
    gpus = Gpus()
    gpus.sense(NOW)
    state.raise_xid(FIRST, 48)
    found = gpus.sense(advance(state, later(5)))
    (lack,) = found.xid_lacks
    assert "are not seen" in lack
    assert f"NVML {code}" in lack
    assert found.xids == ()
    assert found.library is LibraryState.READY
    assert [one.health for one in found.readings] == [Health.READY] * 2
    assert all(one.share is not None for one in found.readings)


def test_one_device_without_events_hides_none_of_the_others(state: NvmlState) -> None:
    state.fail("nvmlDeviceRegisterEvents", 3, uuid=FIRST)
    gpus = Gpus()
    (lack,) = gpus.sense(NOW).xid_lacks
    assert FIRST in lack
    assert SECOND not in lack
    state.raise_xid(FIRST, 48)
    state.raise_xid(SECOND, 48)
    assert gpus.sense(later(1)).xids == (GpuXid(uuid=SECOND, xid=48),)


def test_a_wait_that_fails_ends_no_round(state: NvmlState) -> None:
    gpus = Gpus()
    gpus.sense(NOW)
    state.raise_xid(FIRST, 48)
    state.fail("nvmlEventSetWait_v2", 15)
    assert gpus.sense(later(1)).xids == ()
    state.fail("nvmlEventSetWait_v2", 0)
    assert [one.xid for one in gpus.sense(later(2)).xids] == [48]


def test_a_flood_is_taken_in_parts(state: NvmlState) -> None:
    gpus = Gpus()
    gpus.sense(NOW)
    with state.batch():
        for _ in range(MOST_AT_ONCE + 5):
            state.raise_xid(FIRST, 31)
    assert [len(gpus.sense(later(second)).xids) for second in (1, 2, 3)] == [MOST_AT_ONCE, 5, 0]


def test_a_driver_that_was_loaded_again_is_watched_again(state: NvmlState) -> None:
    gpus = Gpus()
    gpus.sense(NOW)
    state.reload_driver()
    gpus.sense(later(1))
    gpus.sense(later(3))
    state.raise_xid(FIRST, 48)
    assert [one.xid for one in gpus.sense(later(4)).xids] == [48]
