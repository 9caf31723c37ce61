"""Drivers that refuse one question, or never answer it: only its answer lacks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coda_agent.gpus.devices import GpuReading, Health
from coda_agent.gpus.driver.gpus import Gpus
from coda_lab.emulators.nvml import NvmlState
from tests.agent.gpus.rig import NOW, advance, later
from tests.agent.gpus.test_gpus import FIRST, SECOND, cut, reading_of

REFUSED = 4
TIMEOUT = 10
UNKNOWN = 999


def rounds(state: NvmlState, gpus: Gpus, seconds: Sequence[int] = (10, 11)) -> GpuReading:
    """The last reading of the first GPU; the second one is measured all the time."""
    for second in seconds:
        snapshot = gpus.sense(advance(state, later(second)))
        second_gpu = reading_of(snapshot, SECOND)
        assert second_gpu.health is Health.READY
        assert second_gpu.share == pytest.approx(0.6)
    return reading_of(snapshot, FIRST)


@pytest.mark.parametrize("code", [REFUSED, TIMEOUT])
@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId"]
)
def test_a_gpu_whose_slices_may_not_be_asked_is_ready_and_says_so(state: NvmlState, call: str, code: int) -> None:
    cut(state, a=1, b=2)
    state.fail(call, code, uuid=FIRST)
    gpus = Gpus()
    gpus.sense(NOW)
    reading = rounds(state, gpus)
    assert (reading.health, reading.gpu.mig, reading.gpu.instances) == (Health.READY, True, ())
    assert reading.why is not None
    assert (call in reading.why, reading.why.count("NVML")) == (True, 1)


@pytest.mark.parametrize("code", [REFUSED, TIMEOUT])
def test_slices_that_do_not_tell_their_memory_are_measured_all_the_same(state: NvmlState, code: int) -> None:
    cut(state, a=1, b=2)
    state.set_slice_utilisation(FIRST, "a", 0.4)
    state.fail("nvmlDeviceGetMemoryInfo", code, uuid=FIRST)
    gpus = Gpus()
    gpus.sense(NOW)
    reading = rounds(state, gpus)
    assert [(part.uuid, part.memory_bytes) for part in reading.gpu.instances] == [("a", None), ("b", None)]
    assert reading.by_instance["a"].memory is None
    assert reading.by_instance["a"].share == pytest.approx(0.4, abs=1e-4)
    assert reading.why is not None
    assert "nvmlDeviceGetMemoryInfo" in reading.why


@pytest.mark.parametrize("call", ["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"])
def test_a_slice_that_does_not_answer_for_a_round_is_still_there(state: NvmlState, call: str) -> None:
    """Else its pod would be judged by its other slices."""
    cut(state, a=1, b=2)
    gpus = Gpus()
    gpus.sense(NOW)
    before = rounds(state, gpus)
    state.fail(call, TIMEOUT, uuid=FIRST)
    reading = rounds(state, gpus, [12])
    assert reading.gpu.instances == before.gpu.instances
    assert (reading.by_instance["a"].memory, reading.by_instance["a"].share) == (None, 0.0)
    cut(state, b=2)
    state.fail(call, 0, uuid=FIRST)
    assert [part.uuid for part in rounds(state, gpus, [13]).gpu.instances] == ["b"]


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetSamples", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo"]
)
def test_one_question_that_the_driver_never_answers_costs_only_its_answer(state: NvmlState, call: str) -> None:
    state.fail(call, UNKNOWN, uuid=FIRST)
    gpus = Gpus()
    gpus.sense(NOW)
    reading = rounds(state, gpus)
    assert reading.health is Health.READY
    assert reading.why is not None
    assert f"{call}: Unknown Error (NVML 999)" in reading.why
    answers = {
        "nvmlDeviceGetSamples": reading.share,
        "nvmlDeviceGetComputeRunningProcesses_v3": reading.processes,
        "nvmlDeviceGetMemoryInfo": reading.memory,
    }
    assert [name for name, answer in answers.items() if answer is None] == [call]


def test_a_slice_that_the_driver_does_not_know_costs_only_its_own_share(state: NvmlState) -> None:
    cut(state, a=1, b=2)
    state.fail("nvmlGpmMigSampleGet", UNKNOWN, uuid=FIRST)
    gpus = Gpus()
    gpus.sense(NOW)
    reading = rounds(state, gpus)
    assert reading.health is Health.READY
    assert [reading.by_instance[uuid].share for uuid in ("a", "b")] == [None, None]
    assert all(part.memory is not None for part in reading.by_instance.values())


def test_a_gpu_that_answers_nothing_any_more_is_lost_whoever_it_says_it_is(state: NvmlState) -> None:
    """A driver may know the UUID of a device that has gone."""
    gpus = Gpus()
    gpus.sense(NOW)
    for call in ("nvmlDeviceGetSamples", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo"):
        state.fail(call, UNKNOWN, uuid=FIRST)
    assert rounds(state, gpus).health is Health.LOST
