"""The whole agent tuning jobs on emulated machines, with planner, operator and kubelet beside it (`EmulatedCluster`).

`benchmarks/agent_quality.py` shows the distance from every core count under many seeds."""

from __future__ import annotations

import pytest

from coda.allocator import SearchResult, Tuning, TuningPhase
from coda_agent.node import LOOK_AGAIN_S
from coda_lab.emulators.cgroups.kubelet import Quality
from coda_lab.emulators.cluster_rig import EmulatedCluster
from coda_lab.emulators.load import Curved, Gpus
from coda_lab.emulators.nvml import Process
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.rig import Rig
from tests.core.allocator.curves import MODELS, SYNERGY, Curve, fewest_best, interpolated, linear_then_drop, model_curve
from tests.lengths import LONG

WINDOW_S = 30  # where the length of windows is not what is tested


def answer_of(tuning: Tuning) -> tuple[int, int]:
    """Cores and windows."""
    assert isinstance(tuning.found, SearchResult)
    return tuning.found.cores, tuning.found.windows


async def found_on(rig: Rig, cases: dict[str, tuple[Curve, int]], noise: float) -> dict[str, tuple[int, int]]:
    """Cores and windows of one job per curve and start point, all on one node; the cgroups have what was found."""
    cluster = EmulatedCluster(rig, most=28)
    for seed, (name, (curve, start)) in enumerate(cases.items()):
        cluster.submit(name, start=start, trainer=Curved(curve=curve, noise=noise), seed=seed)
    await cluster.until_done()
    found = {name: answer_of(cluster.tuning(name)) for name in cases}
    assert {name: rig.node.limit_of(cluster.jobs[name].work) for name in cases} == {n: c for n, (c, _) in found.items()}
    return found


async def test_eight_jobs_of_eight_models_are_tuned_as_in_table_ii(make_rig: MakeRig) -> None:
    found = await found_on(make_rig(), {model.name: (model_curve(model), model.start) for model in MODELS}, noise=0.0)
    assert found == {model.name: (model.optimum, model.steps) for model in MODELS}


@pytest.mark.parametrize("noise", [0.01, 0.03] if LONG else [0.03])
async def test_under_noise_the_eight_models_are_tuned_within_one_core(make_rig: MakeRig, noise: float) -> None:
    found = await found_on(make_rig(), {model.name: (model_curve(model), model.start) for model in MODELS}, noise)
    assert {name: cores for name, (cores, _) in found.items()} == {
        model.name: pytest.approx(model.optimum, abs=1) for model in MODELS
    }


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03] if LONG else [0.03])
async def test_synergys_curves_are_tuned_within_one_core(make_rig: MakeRig, noise: float) -> None:
    curves = {name: interpolated(points) for name, points in SYNERGY.items()}
    starts = {model.name: model.start for model in MODELS}
    found = await found_on(make_rig(), {name: (curve, starts[name]) for name, curve in curves.items()}, noise)
    assert {name: cores for name, (cores, _) in found.items()} == {
        name: pytest.approx(fewest_best(curve, 28, 0.01), abs=1) for name, curve in curves.items()
    }


def one(rig: Rig, optimum: int = 4, start: int = 3, most: int = 32, resize_s: int = 2) -> EmulatedCluster:
    cluster = EmulatedCluster(rig, most=most, resize_s=resize_s)
    cluster.submit("train", start=start, trainer=Curved(curve=linear_then_drop(optimum, 0.9)))
    return cluster


async def test_a_window_begins_only_when_the_cores_are_as_wished_and_settled(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S), resize_s=20)
    await cluster.run(10 + WINDOW_S + 5)  # settled, measured, wished
    assert cluster.tuning("train").phase is TuningPhase.WISHING
    await cluster.run(20 + 10 + WINDOW_S - 10)
    assert cluster.tuning("train").phase is TuningPhase.MEASURING
    await cluster.run(20)
    assert cluster.tuning("train").phase is TuningPhase.WISHING


async def test_a_scrape_shows_what_the_search_measured_with_each_number_of_cores(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    await cluster.until_done()
    found = cluster.tuning("train").found
    assert found is not None
    shown = {
        (sample.labels["trainingjob"], int(sample.labels["cores"])): sample.value
        for family in cluster.rig.registry.collect()
        for sample in family.samples
        if sample.name == "coda_tuning_gpu_utilization_ratio"
    }
    assert shown == {("train", point.cores): point.share for point in found.curve}
    assert len(shown) > 2


async def test_growth_that_cannot_be_had_leaves_the_most_that_can(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S), optimum=8, start=4, most=6)
    await cluster.until_done()
    assert answer_of(cluster.tuning("train"))[0] == cluster.rig.node.limit_of(cluster.jobs["train"].work) == 6


@pytest.mark.parametrize(("allocatable_m", "stays", "most"), [(10_000, 2, 8), (7910, 0.3, 7)])
async def test_no_wish_goes_beyond_what_the_node_can_give(
    make_rig: MakeRig, allocatable_m: int, stays: float, most: int
) -> None:
    """A kubelet keeps cores for the system, and some pods never leave: only a refused wish showed it before."""
    rig = make_rig(window_s=WINDOW_S)
    rig.api.allocatable_m = allocatable_m
    rig.node.start("static", cores=stays, quality=Quality.GUARANTEED, annotations={"kubernetes.io/config.mirror": "x"})
    cluster = one(rig, optimum=16, start=4)
    wished: set[int] = set()
    for _ in range(1200):
        await cluster.run(1)
        wished.add(((cluster.status("train").get("tuning") or {}).get("wish") or {}).get("coresPerReplica", 0))
    assert max(wished) == most == rig.node.limit_of(cluster.jobs["train"].work)
    assert cluster.tuning("train").reason == "Limited"


async def test_cpus_that_come_are_given_to_jobs(make_rig: MakeRig) -> None:
    rig = make_rig(window_s=WINDOW_S)
    rig.kill()
    cpus = rig.folder / "sys/devices/system/cpu"
    (away := rig.folder / "away").mkdir()
    for cpu in [cpu for cpu in cpus.glob("cpu[0-9]*") if int(cpu.name[3:]) >= 8]:
        cpu.rename(away / cpu.name)
    rig.start()
    await rig.run(5)
    assert rig.agent.topology.cores == 8
    for cpu in [*away.iterdir()]:
        cpu.rename(cpus / cpu.name)
    await rig.run(int(LOOK_AGAIN_S) + 5)
    cluster = one(rig, optimum=12, start=7)
    await cluster.until_done()
    assert answer_of(cluster.tuning("train"))[0] == 12


async def test_a_killed_agent_goes_on_where_the_status_says(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    await cluster.run(10 + WINDOW_S + 15)
    steps = cluster.tuning("train").found
    assert steps is not None
    assert len(steps.curve) == 1
    cluster.rig.kill()
    cluster.rig.start()
    await cluster.until_done()
    assert answer_of(cluster.tuning("train")) == (4, 4)


async def test_a_container_that_restarts_is_measured_anew(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    await cluster.run(WINDOW_S)
    work = cluster.jobs["train"].work
    process = cluster.rig.node.kubelet.restart(work.uid, "main").process
    cluster.rig.node.kubelet.demand(work.uid, "main", 64)
    cluster.rig.node.state.set_processes(work.devices[0], [Process(pid=process)])
    await cluster.run(20)
    assert cluster.tuning("train").phase is TuningPhase.MEASURING


async def test_a_gpu_that_is_lost_and_back_costs_a_window_and_no_wrong_answer(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    await cluster.run(20)
    (device,) = cluster.jobs["train"].work.devices
    cluster.rig.node.state.lose(device)
    await cluster.run(WINDOW_S)
    cluster.rig.node.state.lose(device, 0)
    await cluster.until_done()
    assert answer_of(cluster.tuning("train"))[0] == 4


async def test_a_gpu_that_others_use_too_is_not_tuned_by_and_the_job_says_so(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    stranger = cluster.rig.node.start("stranger", cores=1)
    pids = [
        cluster.rig.node.kubelet.pods[pod.uid].containers["main"].process
        for pod in (cluster.jobs["train"].work, stranger)
    ]
    cluster.rig.node.state.set_processes(cluster.jobs["train"].work.devices[0], [Process(pid=pid) for pid in pids])
    await cluster.run(10 + WINDOW_S + 5)
    tuning = cluster.tuning("train")
    assert tuning.phase is TuningPhase.MEASURING
    assert f"of the pod with uid {stranger.uid} uses" in tuning.message
    await cluster.until_done()
    tuning = cluster.tuning("train")
    assert tuning.phase is TuningPhase.STOPPED
    assert f"of the pod with uid {stranger.uid} uses" in tuning.message
    assert cluster.rig.node.limit_of(cluster.jobs["train"].work) == 3


async def test_a_job_whose_gpus_idle_while_it_loads_its_data_says_so_and_is_tuned_afterwards(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    work = cluster.jobs["train"].work
    training, work.gpus = work.gpus, Gpus(Curved(curve=lambda cores: 0.0), seed=0)
    await cluster.run(10 * WINDOW_S)
    assert cluster.tuning("train").message == "its GPUs were idle in the last window: it is measured again"
    work.gpus = training
    await cluster.until_done()
    assert answer_of(cluster.tuning("train"))[0] == 4


async def test_tuning_waits_for_an_api_server_that_is_away_and_goes_on(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    await cluster.run(20)
    cluster.rig.api.away_since_s = cluster.rig.node.now.monotonic_s
    await cluster.run(200)
    assert cluster.tuning("train").phase is TuningPhase.MEASURING
    cluster.rig.api.away_since_s = None
    await cluster.until_done()
    assert answer_of(cluster.tuning("train"))[0] == 4


async def test_a_window_measured_while_the_api_server_was_away_is_not_measured_again(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    await cluster.run(20)
    cluster.rig.api.away_since_s = cluster.rig.node.now.monotonic_s
    await cluster.run(10 + WINDOW_S)
    cluster.rig.api.away_since_s = None
    await cluster.run(3)
    assert cluster.tuning("train").phase is TuningPhase.WISHING


async def test_a_tuning_nobody_can_read_begins_anew_and_is_said_once(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    job = cluster.rig.api.jobs["default/train"]
    job["status"]["tuning"] = {"attempt": 1, "phase": "Measuring", "search": {"start": -1}}
    await cluster.run(10)
    assert cluster.tuning("train").phase is TuningPhase.MEASURING
    assert caplog.text.count("cannot be read and begins anew") == 1


async def test_a_job_that_cannot_be_read_is_said_once_beside_other_problems(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    cluster.rig.api.jobs["default/train"]["status"]["placement"] = {"attempt": "none"}
    cluster.rig.node.state.unload_driver()
    await cluster.rig.run(10)
    assert caplog.text.count("cannot be read and is not tuned") == 1
    assert caplog.text.count("DRIVER_NOT_LOADED") + caplog.text.count("Driver Not Loaded") <= 1


async def test_jobs_with_cores_of_their_users_choice_are_never_touched(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    cluster.rig.api.jobs["default/train"]["spec"]["cpusPerReplica"] = "3"
    await cluster.run(3 * WINDOW_S)
    assert "tuning" not in cluster.rig.api.jobs["default/train"]["status"]
