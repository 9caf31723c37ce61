"""The eliminator inside a simulation. Alexnet wants 12 of a node's 256 GB/s and loses 30 % of its speed where all are
wanted; its neighbour wants 244."""

import pytest

from coda.contention import ContentionConfig
from tests.sim.simulating import only, simulated, simulated_under, spans
from tests.sim.worlds import row

COARSE = ContentionConfig(window_s=10.0)
TRAINING = row("a1", gpus=1, cpus=4, submit_s=0, duration_s=20_000)
HEAVY = row("a2", gpus=0, cpus=1, submit_s=2000, duration_s=4000)
ALEXNET = only("Alexnet", cpu_gb_per_s=244.0)


def test_without_the_eliminator_the_training_job_suffers_to_the_end_of_its_neighbour() -> None:
    log = simulated([TRAINING, HEAVY], "1x4x8", traits=ALEXNET)
    assert log.throttles == 0
    assert log.entries[0].victim_s == pytest.approx(4000)
    assert log.entries[0].victim_lost_s == pytest.approx(0.3 * 4000)
    assert spans(log)["a1"] == [pytest.approx((0, 20_000 + 0.3 * 4000))]


def test_the_eliminator_throttles_the_neighbour_and_the_training_job_recovers() -> None:
    log = simulated([TRAINING, HEAVY], "1x4x8", traits=ALEXNET, contention=COARSE)
    training, heavy = log.entries
    assert log.throttles >= 1
    assert training.victim_s < 800  # three checks of what helped among them, each as long as a window
    assert training.end_s is not None
    assert training.end_s < 20_000 + 0.3 * 400
    assert heavy.end_s is not None
    assert heavy.end_s > 2000 + 4000  # it paid for it


def test_nobody_is_throttled_where_no_training_job_suffers() -> None:
    log = simulated([TRAINING, HEAVY], "1x4x8", traits=only("Alexnet", cpu_gb_per_s=100.0), contention=COARSE)
    assert log.throttles == 0
    assert spans(log) == {"a1": [(0, 20_000)], "a2": [(2000, 6000)]}


def test_a_job_that_came_into_contention_has_no_reference_and_nobody_is_throttled_for_it() -> None:
    late = row("a1", gpus=1, cpus=4, submit_s=3000, duration_s=100)
    log = simulated([late, HEAVY], "1x4x8", traits=ALEXNET, contention=COARSE)
    assert log.throttles == 0


def test_coda_without_its_eliminator_keeps_training_jobs_longer() -> None:
    whole = simulated_under("coda", [TRAINING, HEAVY], "1x4x8", traits=ALEXNET)
    without = simulated_under("coda", [TRAINING, HEAVY], "1x4x8", without=["eliminator"], traits=ALEXNET)
    assert whole.throttles > 0 == without.throttles
    assert whole.entries[0].victim_s < without.entries[0].victim_s / 1.5
    assert whole.entries[0].end_s is not None
    assert without.entries[0].end_s is not None
    assert whole.entries[0].end_s < without.entries[0].end_s
