"""The agent's GPUs, over the emulated library and the real nvidia-ml-py."""

from __future__ import annotations

import pytest

from coda_agent.gpus.devices import GpuReading, Health, LibraryState, Memory, Metric, Snapshot
from coda_agent.gpus.driver.gpus import Gpus, GpusConfig
from coda_lab.emulators.nvml import NvmlState, Process, Slice
from tests.agent.gpus.rig import NOW, NOW_US, PERIOD_US, advance, gpu, later

FIRST, SECOND = gpu(0).uuid, gpu(1).uuid
NOT_SUPPORTED = 3


def reading_of(snapshot: Snapshot, uuid: str) -> GpuReading:
    return next(reading for reading in snapshot.readings if reading.gpu.uuid == uuid)


@pytest.fixture
def gpus(state: NvmlState) -> Gpus:
    """Already past settling: its next round is `later(10)` or after."""
    gpus = Gpus()
    gpus.sense(NOW)
    gpus.sense(advance(state, later(9)))
    return gpus


def test_devices_are_known_by_uuid_with_all_that_places_them(state: NvmlState) -> None:
    device = state.device(SECOND)
    device.cpus, device.numa_node = frozenset(range(64, 128)), 1
    state.write()
    found = reading_of(Gpus().sense(NOW), SECOND).gpu
    assert (found.index, found.minor, found.pci_bus_id) == (1, 1, "0000:02:00.0")
    assert (found.cpus, found.numa_nodes) == (frozenset(range(64, 128)), frozenset({1}))
    assert (found.name, found.memory_bytes, found.mig) == ("NVIDIA A100-SXM4-80GB", 80 << 30, False)


def test_the_first_seconds_of_a_device_are_withheld(state: NvmlState) -> None:
    gpus = Gpus(GpusConfig(settle_s=3.0))
    first = gpus.sense(NOW).readings[0]
    assert (first.health, first.share, first.samples) == (Health.SETTLING, None, ())
    settled = gpus.sense(advance(state, later(4))).readings[0]
    assert settled.health is Health.READY
    assert len(settled.samples) == 6  # one second of the four
    assert min(sample.at_s for sample in settled.samples) >= NOW.monotonic_s + 3


def test_each_sample_is_seen_once_and_their_mean_is_the_share(state: NvmlState, gpus: Gpus) -> None:
    state.set_utilisation(FIRST, 0.25)
    rounds = [reading_of(gpus.sense(advance(state, later(10 + second))), FIRST) for second in range(5)]
    stamps = [sample.at_s for reading in rounds for sample in reading.samples]
    assert stamps == sorted(set(stamps))
    assert len(stamps) == 30
    assert all(reading.share == pytest.approx(0.25) for reading in rounds)


def test_a_round_without_a_new_sample_has_no_share(state: NvmlState, gpus: Gpus) -> None:
    now = advance(state, later(10))
    assert reading_of(gpus.sense(now), FIRST).share == pytest.approx(0.6)
    again = reading_of(gpus.sense(now), FIRST)
    assert (again.health, again.share, again.samples) == (Health.READY, None, ())


def test_an_idle_device_has_share_zero_which_is_not_unmeasured(state: NvmlState, gpus: Gpus) -> None:
    state.set_utilisation(FIRST, 0.0)
    assert reading_of(gpus.sense(advance(state, later(10))), FIRST).share == 0.0


def test_impossible_samples_do_not_count(state: NvmlState, gpus: Gpus) -> None:
    device = state.device(FIRST)
    device.steps = []
    device.samples = [
        (NOW_US + 9_500_000, 30),
        (NOW_US + 9_600_000, 4_000_000_000),
        (NOW_US + 90_000_000, 50),
        (17, 40),
    ]
    state.write()
    assert reading_of(gpus.sense(advance(state, later(10))), FIRST).share == pytest.approx(0.3)


def test_a_wall_clock_set_back_loses_no_more_than_a_second(state: NvmlState, gpus: Gpus) -> None:
    advance(state, later(10))
    gpus.sense(later(10))
    state.set_utilisation(FIRST, 0.5, at_us=0)
    for second in (11, 12, 13):
        now = advance(state, later(second, jump_s=-3600))
        reading = reading_of(gpus.sense(now), FIRST)
    assert reading.share == pytest.approx(0.5)
    assert all(now.monotonic_s - 1.2 < sample.at_s <= now.monotonic_s for sample in reading.samples)


def test_a_wall_clock_set_forward_loses_nothing(state: NvmlState, gpus: Gpus) -> None:
    reading = reading_of(gpus.sense(advance(state, later(10, jump_s=86_400))), FIRST)
    assert reading.samples[-1].at_s == pytest.approx(later(10).monotonic_s, abs=PERIOD_US / 1e6)


def test_a_device_without_a_sample_buffer_is_polled(state: NvmlState, gpus: Gpus) -> None:
    state.fail("nvmlDeviceGetSamples", NOT_SUPPORTED, uuid=FIRST)
    snapshot = gpus.sense(advance(state, later(10)))
    polled = reading_of(snapshot, FIRST)
    assert [(sample.at_s, sample.share) for sample in polled.samples] == [(later(10).monotonic_s, 0.6)]
    assert Metric.UTILISATION not in polled.unmeasured
    assert len(reading_of(snapshot, SECOND).samples) == 6


def test_a_device_that_cannot_tell_utilisation_at_all_says_so(state: NvmlState, gpus: Gpus) -> None:
    for call in ("nvmlDeviceGetSamples", "nvmlDeviceGetUtilizationRates"):
        state.fail(call, NOT_SUPPORTED, uuid=FIRST)
    reading = reading_of(gpus.sense(advance(state, later(10))), FIRST)
    assert (reading.health, reading.share) == (Health.READY, None)
    assert Metric.UTILISATION in reading.unmeasured


def test_processes_have_memory(state: NvmlState, gpus: Gpus) -> None:
    state.set_processes(FIRST, [Process(pid=42, share=0.2), Process(pid=41, share=0.4, memory_bytes=-1)])
    reading = reading_of(gpus.sense(advance(state, later(10))), FIRST)
    assert reading.processes is not None
    assert [(process.pid, process.memory_bytes) for process in reading.processes] == [(41, None), (42, 1 << 30)]
    assert reading.memory == Memory(total_bytes=80 << 30, used_bytes=1 << 30)


def test_a_metric_that_fails_once_is_left_out_once(state: NvmlState, gpus: Gpus) -> None:
    state.fail("nvmlDeviceGetMemoryInfo", 10, uuid=FIRST)  # timeout
    reading = reading_of(gpus.sense(advance(state, later(10))), FIRST)
    assert (reading.health, reading.memory) == (Health.READY, None)
    assert reading.why == "nvmlDeviceGetMemoryInfo: Timeout (NVML 10)"
    assert reading.share == pytest.approx(0.6)
    state.fail("nvmlDeviceGetMemoryInfo", 0, uuid=FIRST)
    assert reading_of(gpus.sense(advance(state, later(11))), FIRST).memory is not None


@pytest.mark.parametrize("code", [4, 17])
def test_a_refused_metric_says_so_and_the_others_go_on(state: NvmlState, gpus: Gpus, code: int) -> None:
    state.fail("nvmlDeviceGetComputeRunningProcesses_v3", code)
    reading = reading_of(gpus.sense(advance(state, later(10))), FIRST)
    assert reading.processes is None
    assert reading.why is not None
    assert reading.share == pytest.approx(0.6)


def test_before_hopper_mig_has_memory_and_processes_but_no_utilisation(state: NvmlState) -> None:
    device = state.device(FIRST)
    device.mig = True
    device.slices = [
        Slice(slot=3, uuid="MIG-b", gpu_instance=5, used_bytes=9, profile="3g.40gb"),
        Slice(slot=0, uuid="MIG-a", gpu_instance=1),
    ]
    state.set_processes(FIRST, [Process(pid=41, gpu_instance=5)])
    gpus = Gpus()
    gpus.sense(NOW)
    reading = reading_of(gpus.sense(advance(state, later(10))), FIRST)
    assert (reading.health, reading.share, reading.gpu.mig) == (Health.READY, None, True)
    assert reading.unmeasured == {Metric.UTILISATION}
    assert [(part.uuid, part.gpu_instance) for part in reading.gpu.instances] == [("MIG-a", 1), ("MIG-b", 5)]
    assert [part.profile for part in reading.gpu.instances] == ["1g.10gb", "3g.40gb"]
    memory = reading.by_instance["MIG-b"].memory
    assert memory is not None
    assert memory.used_bytes == 9
    assert reading.processes is not None
    assert reading.processes[0].gpu_instance == 5


def cut(state: NvmlState, **instance_by_slice: int) -> None:
    """The first device in slices whose GPUs have performance monitoring; all idle."""
    device = state.device(FIRST)
    device.mig = True
    device.slices = [
        Slice(slot=slot, uuid=uuid, gpu_instance=instance, compute_instance=slot)
        for slot, (uuid, instance) in enumerate(instance_by_slice.items())
    ]
    for uuid in instance_by_slice:
        state.set_slice_utilisation(FIRST, uuid, 0.0)


def test_each_slice_shows_how_busy_it_was_since_the_round_before(state: NvmlState) -> None:
    cut(state, a=1, b=2)
    gpus = Gpus()
    gpus.sense(NOW)
    before = reading_of(gpus.sense(advance(state, later(10))), FIRST)
    assert [part.has_utilisation for part in before.gpu.instances] == [True, True]
    state.set_slice_utilisation(FIRST, "a", 0.4)
    state.set_slice_utilisation(FIRST, "b", 0.8)
    advance(state, later(10.5))
    state.set_slice_utilisation(FIRST, "b", 0.0)
    reading = reading_of(gpus.sense(advance(state, later(11))), FIRST)
    shares = [reading.by_instance[uuid].share for uuid in ("a", "b")]
    assert shares == pytest.approx([0.4, 0.4], abs=1e-4)
    assert (reading.share, reading.unmeasured) == (None, frozenset())


def test_a_new_slice_has_no_utilisation_in_its_first_round(state: NvmlState) -> None:
    cut(state, a=1)
    gpus = Gpus()
    gpus.sense(NOW)
    cut(state, a=1, b=2)
    reading = reading_of(gpus.sense(advance(state, later(10))), FIRST)
    assert [reading.by_instance[uuid].share for uuid in ("a", "b")] == [0.0, None]


def test_slices_that_share_a_gpu_instance_are_not_told_apart(state: NvmlState) -> None:
    cut(state, a=1, b=1, c=2)
    gpus = Gpus()
    gpus.sense(NOW)
    reading = reading_of(gpus.sense(advance(state, later(10))), FIRST)
    assert [part.has_utilisation for part in reading.gpu.instances] == [False, False, True]
    assert [reading.by_instance[uuid].share for uuid in ("a", "b", "c")] == [None, None, 0.0]


def test_a_slice_goes_on_after_a_round_without_counters(state: NvmlState) -> None:
    cut(state, a=1)
    gpus = Gpus()
    gpus.sense(NOW)
    state.fail("nvmlGpmMigSampleGet", 10, uuid=FIRST)  # timeout
    failed = reading_of(gpus.sense(advance(state, later(10))), FIRST)
    assert (failed.by_instance["a"].share, failed.why) == (None, "nvmlGpmMigSampleGet: Timeout (NVML 10)")
    state.fail("nvmlGpmMigSampleGet", 0, uuid=FIRST)
    readings = [reading_of(gpus.sense(advance(state, later(second))), FIRST) for second in (11, 12)]
    assert [reading.by_instance["a"].share for reading in readings] == [None, 0.0]


def test_a_device_is_followed_into_mig_and_out_of_it(state: NvmlState) -> None:
    state.device(FIRST).mig = False
    state.write()
    gpus = Gpus()
    gpus.sense(NOW)
    assert reading_of(gpus.sense(advance(state, later(10))), FIRST).share == pytest.approx(0.6)
    state.device(FIRST).mig = True
    assert reading_of(gpus.sense(advance(state, later(11))), FIRST).gpu.mig is True
    state.device(FIRST).mig = False
    reading = reading_of(gpus.sense(advance(state, later(12))), FIRST)
    assert (reading.gpu.mig, reading.gpu.instances) == (False, ())
    assert reading.share == pytest.approx(0.6)


def test_nothing_is_listed_twice_and_order_is_by_uuid(state: NvmlState) -> None:
    state.devices.reverse()
    state.write()
    assert [reading.gpu.uuid for reading in Gpus().sense(NOW).readings] == [FIRST, SECOND]


def test_closing_ends_the_session_and_the_next_round_begins_another(state: NvmlState, gpus: Gpus) -> None:
    gpus.close()
    assert gpus.open_devices() == {}
    assert gpus.sense(advance(state, later(10))).library is LibraryState.READY
