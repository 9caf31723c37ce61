"""The whole agent tuning jobs on emulated machines. Planner and operator are played: each wish is granted or refused,
and carried out as the kubelet does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from coda.model import WishAnswer
from coda.sizes import Resize, ResizeState
from coda.steering import Tuning, TuningPhase
from coda.tuning import Answer
from coda_kube.client import Json
from coda_kube.naming import LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID, LABEL_RANK
from coda_kube.tuning import answer_json, resize_json, tuning_from_json
from coda_lab.emulators.cgroups.kubelet import Quality
from coda_lab.emulators.load import Gpus, Trainer
from coda_lab.emulators.node import Work
from coda_lab.emulators.nvml import Process
from tests.core.curves import MODELS, Model, linear_then_drop, model_curve
from tests.node.agent.conftest import MakeRig
from tests.node.agent.rig import Rig

ATTEMPT = 1
WINDOW_S = 30  # where the length of windows is not what is tested


@dataclass
class Cluster:
    """Planner, operator and kubelet for the jobs of one rig. `most`: cores a job may grow to."""

    rig: Rig
    most: int = 32
    resize_s: int = 2  # until a resize is done
    works: dict[str, Work] = field(default_factory=dict)
    _due: list[tuple[float, str, Json]] = field(default_factory=list)

    def submit(self, name: str, *, start: int, trainer: Trainer, gpus: int = 1, seed: int = 0) -> Work:
        labels = {LABEL_JOB: name, LABEL_JOB_UID: f"uid-{name}", LABEL_ATTEMPT: str(ATTEMPT), LABEL_RANK: "0"}
        work = self.rig.node.start(
            f"{name}-1-0",
            cores=start,
            demand_cores=64,
            trainer=trainer,
            gpus=gpus,
            seed=seed,
            labels=labels,
            quality=Quality.GUARANTEED,
        )
        self.works[name] = work
        self.rig.api.jobs[f"default/{name}"] = {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"},
            "spec": {"cpusPerReplica": "auto", "gpusPerReplica": gpus, "replicas": 1},
            "status": {
                "phase": "Running",
                "request": {"cpusPerReplica": start},
                "placement": {"attempt": ATTEMPT},
            },
        }
        return work

    def tuning(self, name: str) -> Tuning:
        tuning = tuning_from_json(self.rig.api.jobs[f"default/{name}"]["status"])
        assert tuning is not None
        return tuning

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            await self.rig.run(1)
            self._answer()

    async def until_done(self, limit_s: int = 3600) -> None:
        for _ in range(limit_s):
            await self.run(1)
            if all(self.is_done(name) for name in self.works):
                return
        raise AssertionError({name: self.tuning(name) for name in self.works})

    def is_done(self, name: str) -> bool:
        status = self.rig.api.jobs[f"default/{name}"]["status"]
        return (status.get("tuning") or {}).get("phase") not in (None, "Measuring", "Wishing")

    def _answer(self) -> None:
        now_s = self.rig.node.now.wall_s
        for name, work in self.works.items():
            status = self.rig.api.jobs[f"default/{name}"]["status"]
            self._finish(name, work, status, now_s)
            tuning = tuning_from_json(status)
            if tuning is None or tuning.wish is None or self._is_answered(status, tuning.wish.sequence):
                continue
            wish, granted = tuning.wish, tuning.wish.cores <= max(self.most, self._cores(status))
            answer = WishAnswer(
                sequence=wish.sequence,
                granted=granted,
                cores=wish.cores if granted else self.most,
                answered_s=now_s,
                deadline_s=now_s + 30,
            )
            status["placement"]["grant"] = answer_json(answer)
            if granted:
                status["resize"] = self._resize(status, wish.sequence, wish.cores, ResizeState.RESIZING, now_s)

    def _finish(self, name: str, work: Work, status: Json, now_s: float) -> None:
        resize = status.get("resize")
        grant = status["placement"].get("grant")
        if not resize or resize["state"] != "Resizing" or grant is None:
            return
        self._due.append((now_s, name, resize))
        if sum(due[1] == name and due[2]["sequence"] == resize["sequence"] for due in self._due) > self.resize_s:
            self.rig.node.kubelet.resize(work.uid, "main", resize["wanted"])
            done = self._resize(status, resize["sequence"], resize["wanted"], ResizeState.DONE, now_s)
            status["resize"] = {**done, "coresPerReplica": resize["wanted"]}

    def _resize(self, status: Json, sequence: int, wanted: int, state: ResizeState, now_s: float) -> Json:
        cores = self._cores(status)
        return resize_json(
            Resize(attempt=ATTEMPT, sequence=sequence, state=state, wanted=wanted, cores=cores, since_s=now_s)
        )

    @staticmethod
    def _cores(status: Json) -> int:
        resize = status.get("resize")
        return int(resize["coresPerReplica"] if resize else status["request"]["cpusPerReplica"])

    @staticmethod
    def _is_answered(status: Json, sequence: int) -> bool:
        grant = status["placement"].get("grant")
        return grant is not None and grant["sequence"] >= sequence


class CurveGpus:
    """GPUs whose utilisation follows one of the allocator's curves."""

    def __init__(self, curve: Callable[[int], float], noise: float, seed: int) -> None:
        self._curve, self._noise, self._random = curve, noise, random.Random(seed)

    def period(self, cores: float, served_share: float) -> float:
        share = self._curve(max(1, round(cores))) * (1 + self._random.gauss(0, self._noise))
        return min(1.0, max(0.0, share))


def answer_of(tuning: Tuning) -> tuple[int, int]:
    """Cores and windows."""
    assert isinstance(tuning.found, Answer)
    return tuning.found.cores, tuning.found.windows


@pytest.mark.parametrize("noise", [0.0, 0.01])
async def test_eight_jobs_of_eight_models_are_tuned_as_in_table_ii(make_rig: MakeRig, noise: float) -> None:
    cluster = Cluster(make_rig())
    for seed, model in enumerate(MODELS):
        work = cluster.submit(_name(model), start=model.start, trainer=Trainer())
        work.gpus = cast(Gpus, CurveGpus(model_curve(model), noise, seed))
    await cluster.until_done()
    found = {model.name: answer_of(cluster.tuning(_name(model))) for model in MODELS}
    if noise:
        assert all(abs(found[model.name][0] - model.optimum) <= 1 for model in MODELS)
    else:
        assert found == {model.name: (model.optimum, model.steps) for model in MODELS}
    for model in MODELS:
        assert cluster.rig.node.limit_of(cluster.works[_name(model)]) == found[model.name][0]


def one(rig: Rig, optimum: int = 4, start: int = 3, most: int = 32) -> Cluster:
    cluster = Cluster(rig, most=most)
    work = cluster.submit("train", start=start, trainer=Trainer())
    work.gpus = cast(Gpus, CurveGpus(linear_then_drop(optimum, 0.9), 0.0, 0))
    return cluster


async def test_a_window_begins_only_when_the_cores_are_as_wished_and_settled(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    cluster.resize_s = 20
    await cluster.run(10 + WINDOW_S + 5)  # settled, measured, wished
    assert cluster.tuning("train").phase is TuningPhase.WISHING
    await cluster.run(20 + 10 + WINDOW_S - 10)
    assert cluster.tuning("train").phase is TuningPhase.MEASURING
    await cluster.run(20)
    assert cluster.tuning("train").phase is TuningPhase.WISHING


async def test_growth_that_cannot_be_had_leaves_the_most_that_can(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S), optimum=8, start=4, most=6)
    await cluster.until_done()
    assert answer_of(cluster.tuning("train"))[0] == cluster.rig.node.limit_of(cluster.works["train"]) == 6


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
    work = cluster.works["train"]
    process = cluster.rig.node.kubelet.restart(work.uid, "main").process
    cluster.rig.node.kubelet.demand(work.uid, "main", 64)
    cluster.rig.node.state.set_processes(work.devices[0], [Process(pid=process)])
    await cluster.run(20)
    assert cluster.tuning("train").phase is TuningPhase.MEASURING


async def test_a_gpu_that_is_lost_and_back_costs_a_window_and_no_wrong_answer(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    await cluster.run(20)
    (device,) = cluster.works["train"].devices
    cluster.rig.node.state.lose(device)
    await cluster.run(WINDOW_S)
    cluster.rig.node.state.lose(device, 0)
    await cluster.until_done()
    assert answer_of(cluster.tuning("train"))[0] == 4


async def test_a_gpu_that_others_use_too_is_not_tuned_by_and_the_job_says_so(make_rig: MakeRig) -> None:
    cluster = one(make_rig(window_s=WINDOW_S))
    stranger = cluster.rig.node.start("stranger", cores=1)
    pids = [
        cluster.rig.node.kubelet.pods[pod.uid].containers["main"].process for pod in (cluster.works["train"], stranger)
    ]
    cluster.rig.node.state.set_processes(cluster.works["train"].devices[0], [Process(pid=pid) for pid in pids])
    await cluster.until_done()
    tuning = cluster.tuning("train")
    assert tuning.phase is TuningPhase.STOPPED
    assert f"of the pod with uid {stranger.uid} uses" in tuning.message
    assert cluster.rig.node.limit_of(cluster.works["train"]) == 3


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


def _name(model: Model) -> str:
    return model.name.lower().replace("_", "-")
