"""How busy MIG slices are: one that fails silences no other."""

from __future__ import annotations

import pytest

from coda_agent.gpus.devices import Metric
from coda_agent.gpus.driver.gpus import Gpus
from coda_lab.emulators.nvml import NvmlState, Slice
from tests.agent.gpus.rig import NOW, advance, later
from tests.agent.gpus.test_gpus import FIRST, NOT_SUPPORTED, cut, reading_of

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
