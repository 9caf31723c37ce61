"""Each NVML call and its quirks, asked through the real nvidia-ml-py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from coda_lab.emulators.nvml import NvmlState, Process, Slice
from coda_lab.emulators.nvml.devices import NOT_TOLD, ProcessSample
from tests.agent.gpus.rig import NOW_US, PERIOD_US, gpu

FIRST, SECOND = gpu(0).uuid, gpu(1).uuid
CUTS = [
    Slice(slot=0, uuid="MIG-aaaa", gpu_instance=1, memory_bytes=10 << 30, used_bytes=1 << 30),
    Slice(slot=2, uuid="MIG-bbbb", gpu_instance=5),
]


def code_of(call: Callable[..., Any], *arguments: object) -> int:
    with pytest.raises(pynvml.NVMLError) as caught:
        call(*arguments)
    return int(caught.value.value)


@pytest.fixture
def first(state: NvmlState) -> Any:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def cut(state: NvmlState) -> None:
    device = state.device(FIRST)
    device.mig, device.slices = True, list(CUTS)
    state.write()


def test_a_device_says_what_it_is(first: Any) -> None:
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.nvmlDeviceGetUUID(first) == FIRST
    assert pynvml.nvmlDeviceGetName(first) == "NVIDIA A100-SXM4-80GB"
    assert pynvml.nvmlDeviceGetMinorNumber(first) == 0
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(SECOND.encode())) == 1
    assert pynvml.nvmlSystemGetDriverVersion() == "570.86.15"
    pci = pynvml.nvmlDeviceGetPciInfo(first)
    assert (pci.busId, pci.busIdLegacy, pci.bus) == ("00000000:01:00.0", "0000:01:00.0", 1)


def test_nothing_is_answered_without_a_session(state: NvmlState) -> None:
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
    assert code_of(pynvml.nvmlShutdown) == pynvml.NVML_ERROR_UNINITIALIZED


def test_sessions_are_counted(state: NvmlState) -> None:
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 2


def test_no_device_has_an_unknown_index_or_uuid(first: Any) -> None:
    assert code_of(pynvml.nvmlDeviceGetHandleByIndex, 2) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, b"GPU-none") == pynvml.NVML_ERROR_NOT_FOUND


def test_samples_are_whole_percents_on_the_drivers_grid_that_mean_the_level(state: NvmlState, first: Any) -> None:
    state.set_utilisation(FIRST, 0.637, at_us=NOW_US - 60_000_000)
    kind, samples = pynvml.nvmlDeviceGetSamples(first, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    assert kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    assert len(samples) == 120
    assert {sample.sampleValue.uiVal for sample in samples} == {63, 64}
    assert sum(sample.sampleValue.uiVal for sample in samples) / len(samples) == pytest.approx(63.7, abs=0.05)
    assert {sample.timeStamp % PERIOD_US for sample in samples} == {0}
    assert NOW_US - PERIOD_US < samples[-1].timeStamp <= NOW_US


def test_samples_after_a_stamp_are_only_the_newer_ones(first: Any) -> None:
    stamps = [s.timeStamp for s in pynvml.nvmlDeviceGetSamples(first, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)[1]]
    newer = pynvml.nvmlDeviceGetSamples(first, pynvml.NVML_GPU_UTILIZATION_SAMPLES, stamps[-4])[1]
    assert [sample.timeStamp for sample in newer] == stamps[-3:]


def test_samples_are_not_found_when_nothing_is_new(first: Any) -> None:
    answer = code_of(pynvml.nvmlDeviceGetSamples, first, pynvml.NVML_GPU_UTILIZATION_SAMPLES, NOW_US)
    assert answer == pynvml.NVML_ERROR_NOT_FOUND


def test_a_change_of_utilisation_leaves_what_was_sampled_before(state: NvmlState, first: Any) -> None:
    state.set_utilisation(FIRST, 0.2)
    state.freeze(NOW_US + 6 * PERIOD_US)
    samples = pynvml.nvmlDeviceGetSamples(first, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)[1]
    assert [sample.sampleValue.uiVal for sample in samples[-7:]] == [60, *[20] * 6]


def test_rates_are_those_of_the_last_period(first: Any) -> None:
    assert pynvml.nvmlDeviceGetUtilizationRates(first).gpu == 60


def test_process_utilisation_raises_success_when_the_buffer_is_empty(first: Any) -> None:
    assert code_of(pynvml.nvmlDeviceGetProcessUtilization, first, 0) == 0


def test_process_utilisation_is_not_found_when_only_old_entries_are_there(state: NvmlState, first: Any) -> None:
    state.set_processes(FIRST, [Process(pid=41, share=0.5)])
    assert [entry.smUtil for entry in pynvml.nvmlDeviceGetProcessUtilization(first, 0)] == [50]
    assert code_of(pynvml.nvmlDeviceGetProcessUtilization, first, NOW_US) == pynvml.NVML_ERROR_NOT_FOUND


def test_process_utilisation_leaves_out_idle_processes(state: NvmlState, first: Any) -> None:
    state.set_processes(FIRST, [Process(pid=41, share=0.5), Process(pid=42)])
    assert [entry.pid for entry in pynvml.nvmlDeviceGetProcessUtilization(first, 0)] == [41]


def test_stale_entries_come_whatever_is_asked(state: NvmlState, first: Any) -> None:
    device = state.device(FIRST)
    device.process_samples = [ProcessSample(pid=0, at_us=1, sm_percent=4_000_000_000, stale=True)]
    state.write()
    (entry,) = pynvml.nvmlDeviceGetProcessUtilization(first, NOW_US)
    assert (entry.pid, entry.timeStamp, entry.smUtil) == (0, 1, 4_000_000_000)


def test_running_processes_have_their_memory_or_none(state: NvmlState, first: Any) -> None:
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(first) == []
    state.set_processes(FIRST, [Process(pid=41, memory_bytes=7), Process(pid=42, memory_bytes=NOT_TOLD)])
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(first)
    assert [(process.pid, process.usedGpuMemory) for process in running] == [(41, 7), (42, None)]


def test_memory_in_both_versions(state: NvmlState, first: Any) -> None:
    state.set_processes(FIRST, [Process(pid=41, memory_bytes=3 << 30)])
    memory = pynvml.nvmlDeviceGetMemoryInfo(first)
    assert (memory.total, memory.used, memory.free) == (80 << 30, 3 << 30, 77 << 30)
    second = pynvml.nvmlDeviceGetMemoryInfo(first, version=pynvml.nvmlMemory_v2)
    assert second.reserved > 0
    assert second.used + second.free + second.reserved == second.total


def test_a_product_without_mig_does_not_support_it(first: Any) -> None:
    assert code_of(pynvml.nvmlDeviceGetMigMode, first) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_mig_takes_utilisation_away(state: NvmlState, first: Any) -> None:
    cut(state)
    assert pynvml.nvmlDeviceGetMigMode(first) == [1, 1]
    for call in (
        lambda: pynvml.nvmlDeviceGetUtilizationRates(first),
        lambda: pynvml.nvmlDeviceGetSamples(first, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0),
        lambda: pynvml.nvmlDeviceGetProcessUtilization(first, 0),
    ):
        assert code_of(call) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_mig_slices_have_places_memory_and_a_parent(state: NvmlState, first: Any) -> None:
    cut(state)
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(first) == 7
    found = {slot: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(first, slot) for slot in (0, 2)}
    assert {slot: pynvml.nvmlDeviceGetUUID(handle) for slot, handle in found.items()} == {0: "MIG-aaaa", 2: "MIG-bbbb"}
    assert code_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, first, 1) == pynvml.NVML_ERROR_NOT_FOUND
    assert pynvml.nvmlDeviceGetMemoryInfo(found[0]).used == 1 << 30
    assert pynvml.nvmlDeviceGetGpuInstanceId(found[2]) == 5
    assert pynvml.nvmlDeviceIsMigDeviceHandle(found[0]).value == 1
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(found[2])) == FIRST
    assert code_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, first, 7) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_a_slice_shows_only_its_own_processes(state: NvmlState, first: Any) -> None:
    cut(state)
    state.set_processes(FIRST, [Process(pid=41, gpu_instance=1), Process(pid=42, gpu_instance=5)])
    slice_handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(first, 2)
    assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(slice_handle)] == [42]
    assert len(pynvml.nvmlDeviceGetComputeRunningProcesses(first)) == 2


def test_pcie_throughput_blocks_for_20_ms(state: NvmlState, first: Any) -> None:
    state.set_traffic(FIRST, sent_bytes_per_s=2048 * 1000, received_bytes_per_s=1024)
    started_s = time.monotonic()
    assert pynvml.nvmlDeviceGetPcieThroughput(first, pynvml.NVML_PCIE_UTIL_TX_BYTES) == 2000
    assert time.monotonic() - started_s >= 0.02
    assert pynvml.nvmlDeviceGetPcieThroughput(first, pynvml.NVML_PCIE_UTIL_RX_BYTES) == 1


def test_pcie_counters_exist_on_newer_devices_only(state: NvmlState, first: Any) -> None:
    fields = [pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES]
    assert [value.nvmlReturn for value in pynvml.nvmlDeviceGetFieldValues(first, fields)] == [3, 3]
    state.device(FIRST).traffic.counters = True
    state.set_traffic(FIRST, sent_bytes_per_s=1000, received_bytes_per_s=10)
    state.freeze(NOW_US + 2_000_000)
    state.set_traffic(FIRST, sent_bytes_per_s=0, received_bytes_per_s=10)
    state.freeze(NOW_US + 3_000_000)
    assert [value.value.ullVal for value in pynvml.nvmlDeviceGetFieldValues(first, fields)] == [2000, 30]


def test_topology_levels_and_links(state: NvmlState, first: Any) -> None:
    second = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetTopologyCommonAncestor(first, second) == pynvml.NVML_TOPOLOGY_SYSTEM
    assert code_of(pynvml.nvmlDeviceGetNvLinkState, first, 0) == pynvml.NVML_ERROR_NOT_SUPPORTED
    state.device(FIRST).nvlinks = {0: gpu(1).pci_bus_id, 1: ""}
    state.set_ancestor(1, 0, 10)
    assert pynvml.nvmlDeviceGetTopologyCommonAncestor(first, second) == pynvml.NVML_TOPOLOGY_SINGLE
    assert [pynvml.nvmlDeviceGetNvLinkState(first, link) for link in (0, 1)] == [1, 0]
    assert pynvml.nvmlDeviceGetNvLinkRemotePciInfo(first, 0).busId == gpu(1).pci_bus_id
    assert code_of(pynvml.nvmlDeviceGetNvLinkState, first, 2) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert pynvml.nvmlDeviceGetP2PStatus(first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == pynvml.NVML_P2P_STATUS_OK


def test_affinity_is_told_in_words_of_64(state: NvmlState, first: Any) -> None:
    assert code_of(pynvml.nvmlDeviceGetCpuAffinity, first, 2) == pynvml.NVML_ERROR_NOT_SUPPORTED
    device = state.device(FIRST)
    device.cpus, device.numa_node = frozenset({0, 1, 64}), 1
    state.write()
    assert list(pynvml.nvmlDeviceGetCpuAffinity(first, 2)) == [3, 1]
    assert list(pynvml.nvmlDeviceGetMemoryAffinity(first, 1, pynvml.NVML_AFFINITY_SCOPE_NODE)) == [2]
    assert code_of(pynvml.nvmlDeviceGetNumaNodeId, first) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_unknown_functions_are_not_found(first: Any) -> None:
    assert code_of(pynvml.nvmlDeviceGetTemperature, first, 0) == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
