"""How busy MIG slices are: one that fails silences no other."""

from __future__ import annotations

import pytest

from coda_agent.gpus.devices import Health, Metric
from coda_agent.gpus.driver import nvml
from coda_agent.gpus.driver.gpus import Gpus
from coda_agent.gpus.driver.nvml import GpmSample
from coda_lab.emulators.nvml import NvmlState, Slice
from tests.agent.gpus.rig import NOW, advance, later
from tests.agent.gpus.test_gpus import FIRST, NOT_SUPPORTED, SECOND, cut, reading_of

INVALID_ARGUMENT = 2


def test_a_slice_without_counters_silences_no_other(state: NvmlState) -> None:
    cut(state, a=1)
    state.device(FIRST).slices.append(Slice(slot=1, uuid="b", gpu_instance=2))
    state.write()
    gpus = Gpus()
    gpus.sense(NOW)
    state.set_slice_utilisation(FIRST, "a", 0.4)
    for second in (10, 11, 12):
        reading = reading_of(gpus.sense(advance(state, later(second))), FIRST)
        assert reading.by_instance["a"].share == pytest.approx(0.4)
        assert reading.by_instance["b"].share is None
        assert Metric.UTILISATION not in reading.unmeasured
        assert reading.why == "nvmlGpmMigSampleGet: Not Supported (NVML 3)"


def test_an_instance_that_is_made_again_costs_two_rounds_and_no_minute(state: NvmlState) -> None:
    cut(state, a=1)
    gpus = Gpus()
    gpus.sense(NOW)
    state.fail("nvmlGpmMigSampleGet", INVALID_ARGUMENT, uuid=FIRST)
    failed = reading_of(gpus.sense(advance(state, later(10))), FIRST)
    assert (failed.by_instance["a"].share, failed.unmeasured) == (None, frozenset())
    state.fail("nvmlGpmMigSampleGet", 0, uuid=FIRST)
    shares = [
        reading_of(gpus.sense(advance(state, later(second))), FIRST).by_instance["a"].share for second in (11, 12)
    ]
    assert shares == [None, 0.0]


def test_a_device_is_not_measured_only_if_no_slice_is(state: NvmlState) -> None:
    cut(state, a=1, b=2)
    state.fail("nvmlGpmMigSampleGet", NOT_SUPPORTED, uuid=FIRST)
    gpus = Gpus()
    gpus.sense(NOW)
    reading = reading_of(gpus.sense(advance(state, later(10))), FIRST)
    assert reading.unmeasured == {Metric.UTILISATION}
    assert reading.why is None
    assert [part.has_utilisation for part in reading.gpu.instances] == [False, False]


@pytest.mark.parametrize(("busy", "share"), [(1.002, 1.0), (1.09, 1.0), (1.2, None), (0.998, 0.998)])
def test_a_value_a_little_above_all_is_all(state: NvmlState, busy: float, share: float | None) -> None:
    cut(state, a=1)
    gpus = Gpus()
    gpus.sense(NOW)
    gpus.sense(advance(state, later(9)))
    state.set_slice_utilisation(FIRST, "a", busy)
    found = reading_of(gpus.sense(advance(state, later(10))), FIRST).by_instance["a"].share
    assert found == (None if share is None else pytest.approx(share, abs=1e-6))


def test_a_slice_with_a_part_of_its_instances_compute_is_not_measured(state: NvmlState) -> None:
    cut(state, a=1, b=2)
    state.device(FIRST).slices[1].profile = "1c.3g.20gb"
    state.write()
    gpus = Gpus()
    gpus.sense(NOW)
    reading = reading_of(gpus.sense(advance(state, later(10))), FIRST)
    assert [part.has_utilisation for part in reading.gpu.instances] == [True, False]
    assert [reading.by_instance[uuid].share for uuid in ("a", "b")] == [0.0, None]


def test_samples_are_freed_with_their_session_and_compared_within_one(
    state: NvmlState, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, free, end = nvml.new_gpm_sample, nvml.free_gpm_sample, nvml.close_session
    held: set[int] = set()
    held_at_end: list[int] = []

    def counted() -> GpmSample:
        sample = taken()
        held.add(id(sample))
        return sample

    def freed(sample: GpmSample) -> None:
        held.remove(id(sample))
        free(sample)

    def ended() -> None:
        held_at_end.append(len(held))
        end()

    monkeypatch.setattr(nvml, "new_gpm_sample", counted)
    monkeypatch.setattr(nvml, "free_gpm_sample", freed)
    monkeypatch.setattr(nvml, "close_session", ended)
    cut(state, a=1, b=2)
    gpus = Gpus()
    gpus.sense(NOW)
    gpus.sense(advance(state, later(10)))
    assert len(held) == 2
    state.reload_driver()
    assert reading_of(gpus.sense(advance(state, later(11))), FIRST).health is Health.LOST
    shares = [share_at(gpus, state, second) for second in (12, 20)]
    state.lose(SECOND)
    shares += [share_at(gpus, state, second) for second in (21, 22, 23)]  # a session at 22 looks for the lost one
    gpus.close()
    assert shares == [None, 0.0, 0.0, None, 0.0]
    assert held_at_end == [0, 0, 0, 0]


def share_at(gpus: Gpus, state: NvmlState, second: int) -> float | None:
    return reading_of(gpus.sense(advance(state, later(second))), FIRST).by_instance["a"].share
