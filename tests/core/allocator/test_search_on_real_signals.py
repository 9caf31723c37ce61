"""The search on jobs as they are. A short version of `benchmarks/search_on_real_signals.py`, with other seeds."""

from __future__ import annotations

import statistics

import pytest

from coda.allocator import Tuning, TuningConfig
from coda_kube.objects.tuning_status import tuning_from_json, tuning_json
from tests.core.allocator.searching import JOB_S, Search, SearchedJob, searched
from tests.core.allocator.signals import ROWS, SignalModel

pytestmark = pytest.mark.heavy

JOBS = 8


def jobs(name: str, gpus: int) -> list[SearchedJob]:
    return [searched(ROWS[name], gpus, f"short {gpus} {run}") for run in range(JOBS)]


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize(
    ("name", "wrong", "lost"),
    [
        pytest.param("white 3 %", 1, 0.02, id="white noise"),
        pytest.param("evaluation 60 s every 10 min at 20 %", 1, 0.02, id="evaluations"),
        pytest.param("evaluation 60 s every 10 min at 60 %", 1, 0.02, id="busy evaluations"),
        pytest.param("checkpoint 10 s every 5 min at 0 %", 1, 0.02, id="checkpoints"),
        pytest.param("ramp of 15 min from 50 %", 1, 0.03, id="a long ramp"),
        pytest.param("ramp of 15 min from 80 %", JOBS, 0.05, id="a faint ramp"),
        pytest.param("AR(1) 5 %, 60 s", JOBS, 0.05, id="correlated noise"),
        pytest.param("drift -10 % per hour", JOBS, 0.02, id="drift"),
        pytest.param("optimum doubles after 60 min", JOBS, 0.04, id="a phase that needs more"),
        pytest.param("optimum halves after 60 min", 1, 0.04, id="a phase that needs less"),
        pytest.param("optimum doubles after 4 min", JOBS, 0.04, id="a phase within the search"),
        pytest.param("loud: AR(1) 50 %, 20 s for the first 5 min", 1, 0.025, id="a loud start"),
    ],
)
def test_tuning_loses_little_and_less_than_not_tuning(name: str, gpus: int, wrong: int, lost: float) -> None:
    found = jobs(name, gpus)
    assert sum(abs(job.off) > 1 for job in found) <= wrong
    assert statistics.fmean(job.lost for job in found) <= lost
    assert statistics.fmean(job.lost for job in found) < statistics.fmean(job.lost_untuned for job in found)


@pytest.mark.parametrize("deviation", [0.2, 0.5])
def test_noise_that_hides_everything_costs_no_more_than_looking(deviation: float) -> None:
    deafening = SignalModel(white=0.1, ar=(deviation, 60))
    found = [searched(deafening, 8, f"deafening {run}") for run in range(2 * JOBS)]
    assert any(job.cannot_tell for job in found)
    assert statistics.fmean(job.lost - job.lost_untuned for job in found) <= 0.01


class Restarting(Search):
    """An agent that is restarted after each step: only the job's status is left."""

    def forgotten(self) -> Tuning:
        found = tuning_from_json({"tuning": tuning_json(self.tuning)})
        assert found is not None
        return found


@pytest.mark.parametrize("name", ["white 3 %", "ramp of 15 min from 80 %", "AR(1) 5 %, 60 s"])
def test_an_agent_that_is_restarted_after_each_step_does_the_same(name: str) -> None:
    plain, restarting = (each(ROWS[name], 8, "restarted", TuningConfig()) for each in (Search, Restarting))
    plain.run()
    restarting.run()
    assert restarting.tuning == plain.tuning
    assert restarting.cores_by_step == plain.cores_by_step
    assert len(plain.cores_by_step) * 5 == JOB_S
