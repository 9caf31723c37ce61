"""Models and bandwidth of jobs: drawn as often as stated, and the same for a job whatever else is in use."""

import math
from collections import Counter
from dataclasses import fields

import pytest

from coda.errors import InvalidInput
from coda_sim.workload import JobModelConfig, JobModelDraws, profile_set
from coda_sim.workload.job_models import JobModel
from coda_sim.workload.speed_curves import asked_speed, utilisation
from tests.sim.workload.month_numbers import month_requests, origins_of
from tests.sim.worlds import row

PAPER = profile_set("paper")
JOBS = 40_000


def draws(seed: int = 1, config: JobModelConfig | None = None) -> JobModelDraws:
    return JobModelDraws(PAPER, config or JobModelConfig(), seed=seed)


def test_every_number_says_where_it_comes_from() -> None:
    assert origins_of(JobModelConfig).keys() == {one.name for one in fields(JobModelConfig)}


def test_models_come_as_often_as_stated() -> None:
    models = draws()
    drawn = Counter(profile.name for n in range(JOBS) if (profile := models.of(row(f"cm-{n}")).profile))
    for model, share in JobModelConfig().models:
        assert drawn[model] / JOBS == pytest.approx(share, abs=4.5 * math.sqrt(share * (1 - share) / JOBS))


def test_one_cpu_job_in_two_hundred_is_heavy_on_bandwidth() -> None:
    models = draws()
    wanted = [models.of(row(f"cm-{n}", gpus=0)).bandwidth_bytes_per_s for n in range(JOBS)]
    heavy = [one for one in wanted if one]
    assert len(heavy) / JOBS == pytest.approx(0.005, abs=4.5 * math.sqrt(0.005 / JOBS))
    assert all(60e9 <= one <= 100e9 for one in heavy)
    assert math.fsum(heavy) / len(heavy) == pytest.approx(80e9, abs=4.5 * 11.6e9 / math.sqrt(len(heavy)))


def test_a_job_keeps_its_traits_whatever_its_place_and_gets_others_under_another_seed() -> None:
    rows = [row(f"cm-{n}") for n in range(200)]
    first = draws()
    again, other = draws(), draws(seed=2)
    assert [first.of(one) for one in rows] == [again.of(one) for one in reversed(rows)][::-1]
    assert [first.of(one) for one in rows] != [other.of(one) for one in rows]


def test_a_gpu_job_has_a_model_and_a_cpu_job_has_none() -> None:
    assert draws().of(row(gpus=0)).profile is None
    model = draws().of(row(gpus=1))
    assert model.profile is not None
    assert model == JobModel(profile=model.profile)


def test_a_model_that_the_set_lacks_is_refused() -> None:
    with pytest.raises(InvalidInput, match="profile set paper has no model GPT"):
        draws(config=JobModelConfig(models=(("GPT", 1.0),)))
    with pytest.raises(InvalidInput, match="the shares of the models must sum to 1"):
        JobModelConfig(models=(("BAT", 0.5),))


def test_the_sets_agree_on_the_mean_utilisation_at_the_requested_cores() -> None:
    """Which is what fixes the utilisation under arrival order: each set's peaks were fitted to it."""
    means = {name: _mean_utilisation(name) for name in ("paper", "steep", "synergy")}
    assert means["paper"] == pytest.approx(0.544, abs=0.0005)
    assert means["steep"] == pytest.approx(means["paper"], abs=0.002)
    assert means["synergy"] == pytest.approx(means["paper"], abs=0.002)


def _mean_utilisation(name: str) -> float:
    """Over models and requests of the month, weighted by the GPUs they hold (run times depend on neither)."""
    profiles = profile_set(name).profile_by_model
    busy = held = 0.0
    for model, share in JobModelConfig().models:
        for entry in month_requests():
            weight = share * entry.jobs * entry.gpus
            busy += weight * utilisation(profiles[model], asked_speed(profiles[model], entry.cpus, entry.gpus, 1))
            held += weight
    return busy / held


def test_as_many_users_name_a_wrong_category_as_stated_and_the_curve_stays() -> None:
    right, wrong = draws(), draws(config=JobModelConfig(wrong_category_share=0.25))
    jobs = [row(f"cm-{n}") for n in range(JOBS // 4)]
    pairs = [(right.of(job).profile, wrong.of(job).profile) for job in jobs]
    misnamed = 0
    for true, told in pairs:
        assert true is not None
        assert told is not None
        assert (true.name, true.one_gpu_cores) == (told.name, told.one_gpu_cores)
        misnamed += true.category is not told.category
    assert misnamed / len(jobs) == pytest.approx(0.25, abs=4.5 * math.sqrt(0.25 * 0.75 / len(jobs)))


def test_all_cpu_jobs_of_the_standing_user_are_heavy_and_no_others() -> None:
    models = draws(config=JobModelConfig(standing_user="u9", heavy_share=0.0))
    assert models.of(row(gpus=0, user="u9")).bandwidth_bytes_per_s == 240e9
    assert models.of(row(gpus=0)).bandwidth_bytes_per_s == 0
