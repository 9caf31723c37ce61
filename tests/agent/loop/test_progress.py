"""The whole agent beside jobs that say how far they are: what it writes, when, and whom it does not believe."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from coda_kube.objects.names import LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID, LABEL_RANK
from coda_kube.objects.pods.stops import ANNOTATION_STOP
from coda_kube.objects.quantities import time_from_seconds
from coda_lab.emulators.agent_rig import Rig
from tests.agent.loop.conftest import MakeRig


def submit(rig: Rig, name: str = "bert", rank: int = 0, **spec: Any) -> str:
    """A rank of a job that runs here. Returns the uid of its pod."""
    labels = {LABEL_JOB: name, LABEL_JOB_UID: f"uid-{name}", LABEL_ATTEMPT: "1", LABEL_RANK: str(rank)}
    work = rig.node.start(f"{name}-1-{rank}", cores=2, demand_cores=1.0, gpus=0, labels=labels)
    rig.api.jobs[f"default/{name}"] = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"cpusPerReplica": 2, "gpusPerReplica": 1, "replicas": 2, **spec},
        "status": {"phase": "Running", "placement": {"attempt": 1}},
    }
    return work.uid


def say(pods: Path, uid: str, **values: object) -> Path:
    folder = pods / uid / "volumes" / "kubernetes.io~empty-dir" / "coda-job"
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / ".progress"
    part.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return part.replace(folder / "progress")


def told(rig: Rig, name: str = "bert") -> dict[str, Any] | None:
    progress: dict[str, Any] | None = rig.api.jobs[f"default/{name}"]["status"].get("progress")
    return progress


def version(rig: Rig) -> str:
    return str(rig.api.jobs["default/bert"]["metadata"]["resourceVersion"])


async def test_a_job_shows_how_far_it_is_and_when_it_ends(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=10, tune="off")
    uid = submit(rig)
    for step in range(0, 400, 100):  # 100 steps in 10 s
        say(
            tmp_path / "pods", uid, step=step, total_steps=1000, epoch=step / 100, loss=4 - step / 100, lr=0.01, saved=0
        )
        await rig.run(10)
    await rig.run(1)
    progress = told(rig)
    assert progress is not None
    times = {name: progress.pop(name) for name in ("time", "savedTime", "estimatedEnd")}
    assert progress == {
        "attempt": 1,
        "step": 300,
        "totalSteps": 1000,
        "epoch": 3.0,
        "loss": 1.0,
        "learningRate": 0.01,
        "bestLoss": 1.0,
        "bestEpoch": 3,
        "plateau": {"loss": 1.0, "epoch": 3, "epochs": 0, "lastEpoch": 3},
        "savedStep": 0,
    }
    assert times["savedTime"] < times["time"] < times["estimatedEnd"]


async def test_nothing_is_written_without_news_and_an_agent_that_starts_again_goes_on(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=10, tune="off")
    uid = submit(rig)
    say(tmp_path / "pods", uid, step=5, total_steps=10, epoch=1, loss=0.5)
    await rig.run(12)
    before, first = version(rig), told(rig)
    assert before == "2"
    await rig.run(40)
    rig.kill()
    rig.start()
    await rig.run(12)
    assert version(rig) == before
    say(tmp_path / "pods", uid, step=6, epoch=2, loss=0.7)
    await rig.run(12)
    after = told(rig)
    assert first is not None
    assert after is not None
    assert (after["bestLoss"], after["bestEpoch"], after["totalSteps"], after["step"]) == (0.5, 1, 10, 6)
    assert after["plateau"]["epochs"] == 1


async def test_files_that_no_script_writes_are_told_of_and_the_rest_stays(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=1, tune="off")
    uid = submit(rig)
    file = say(tmp_path / "pods", uid, step=7, loss=0.5)
    await rig.run(3)
    for make, words in (
        (lambda: file.symlink_to("/etc/hostname"), "no plain file"),
        (lambda: os.mkfifo(file), "no plain file"),
        (lambda: file.write_bytes(b"\xff\x00" * 100), "not plain text"),
        (lambda: file.write_bytes(b"step=99"), "half written"),
        (lambda: file.write_bytes(b"step=-1\nloss=inf\n"), "step is '-1'"),
        (lambda: file.write_bytes(b"x" * 70_000), "longer than 64 KiB"),
    ):
        file.unlink()
        make()
        await rig.run(3)
        progress = told(rig)
        assert progress is not None
        assert words in progress["message"]
        assert (progress["step"], progress["loss"]) == (7, 0.5)
    say(tmp_path / "pods", uid, step=8)
    await rig.run(3)
    assert "message" not in (told(rig) or {})


async def test_a_job_that_no_longer_learns_is_advised(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=1, tune="off")
    uid = submit(rig, stopWhen={"noImprovementEpochs": 2, "marginPerMille": 10, "action": "Advise"})
    for epoch, loss in enumerate((1.0, 0.5, 0.499, 0.498)):
        say(tmp_path / "pods", uid, epoch=epoch, loss=loss)
        await rig.run(3)
    progress = told(rig)
    assert progress is not None
    assert progress["message"] == (
        "the loss has not improved by 1 % for 2 epochs, since 0.5 in epoch 1; "
        "stopWhen.action Stop would end the job now"
    )


async def test_only_rank_zero_of_the_job_as_it_is_now_is_heard(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=1, tune="off")
    say(tmp_path / "pods", submit(rig, rank=1), step=5)
    say(tmp_path / "pods", submit(rig, "other"), step=5)
    rig.api.jobs["default/other"]["metadata"]["uid"] = "of a later job with this name"
    await rig.run(3)
    assert told(rig) is None
    assert told(rig, "other") is None


async def test_a_status_that_cannot_be_read_begins_anew_and_a_broken_job_harms_no_other(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=1, tune="off")
    say(tmp_path / "pods", submit(rig, "broken", stopWhen={"marginPerMille": 1}), step=5)
    say(tmp_path / "pods", submit(rig), step=5)
    rig.api.jobs["default/bert"]["status"]["progress"] = {"attempt": 1, "step": "many"}
    await rig.run(3)
    assert told(rig, "broken") is None
    assert (told(rig) or {})["step"] == 5


async def test_without_the_folder_of_pods_nothing_is_read(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig(tune="off")
    say(tmp_path / "pods", submit(rig), step=5)
    await rig.run(3)
    assert told(rig) is None


def announce(rig: Rig, uid: str, until_s: float, id_: str = "plan-7") -> None:
    """As the operator does, by the pod's annotation."""
    fields = {"id": id_, "cause": "Migrate", "noticeSeconds": 60, "until": time_from_seconds(until_s)}
    rig.node.works[uid].annotations = {ANNOTATION_STOP: json.dumps(fields)}


def stop_file(pods: Path, uid: str) -> Path:
    return pods / uid / "volumes" / "kubernetes.io~empty-dir" / "coda-job" / "stop"


async def test_a_rank_that_is_to_stop_is_told_and_its_answer_is_written_at_once(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=1000, tune="off", stop_notices=True)
    uid, other = submit(rig), submit(rig, rank=1)
    say(tmp_path / "pods", uid, step=5, saved=0)
    say(tmp_path / "pods", other, step=5)
    await rig.run(2)
    assert not stop_file(tmp_path / "pods", uid).exists()
    for rank in (uid, other):
        announce(rig, rank, rig.node.now.wall_s + 50)
    await rig.run(2)
    for rank in (uid, other):
        assert stop_file(tmp_path / "pods", rank).read_text() == "id=plan-7\ncause=Migrate\nnotice_s=59\n"
    say(tmp_path / "pods", uid, step=6, saved=6, answer="plan-6")
    await rig.run(2)
    assert (told(rig) or {}).get("stopAnswer") == "plan-6"
    say(tmp_path / "pods", uid, step=6, saved=6, answer="plan-7")
    await rig.run(2)
    progress = told(rig)
    assert progress is not None
    assert (progress["stopAnswer"], progress["savedStep"]) == ("plan-7", 6)
    before = stop_file(tmp_path / "pods", uid).stat()
    rig.kill()
    rig.start()
    await rig.run(3)
    assert stop_file(tmp_path / "pods", uid).stat() == before


@pytest.mark.parametrize("until_in_s", [-70.0, -10.0, 50.0, 700.0])
async def test_how_long_it_has_is_counted_from_when_it_was_seen_whatever_the_operators_clock_says(
    make_rig: MakeRig, tmp_path: Path, until_in_s: float
) -> None:
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=1000, tune="off", stop_notices=True)
    uid = submit(rig)
    say(tmp_path / "pods", uid, step=5)
    await rig.run(2)
    announce(rig, uid, rig.node.now.wall_s + until_in_s)
    await rig.run(1)
    assert stop_file(tmp_path / "pods", uid).read_text().endswith("notice_s=59\n")


async def test_an_agent_that_begins_within_a_notice_says_that_half_of_it_is_left(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=1000, tune="off", stop_notices=True)
    uid = submit(rig)
    say(tmp_path / "pods", uid, step=5)
    announce(rig, uid, rig.node.now.wall_s - 10)
    await rig.run(1)
    assert stop_file(tmp_path / "pods", uid).read_text().endswith("notice_s=30\n")


async def test_who_could_not_be_told_at_once_is_told_what_is_left(make_rig: MakeRig, tmp_path: Path) -> None:
    """Its directory could not be written for 10 s, or the API server was away when it was announced."""
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=1000, tune="off", stop_notices=True)
    first, second = submit(rig), submit(rig, rank=1)
    for uid in (first, second):
        say(tmp_path / "pods", uid, step=5)
    in_the_way = stop_file(tmp_path / "pods", first) / "full"
    in_the_way.mkdir(parents=True)
    await rig.run(2)
    announce(rig, first, rig.node.now.wall_s + 60)
    await rig.run(10)
    in_the_way.rmdir()
    in_the_way.parent.rmdir()
    await rig.run(1)
    assert stop_file(tmp_path / "pods", first).read_text().endswith("notice_s=49\n")
    rig.api.away_since_s = rig.node.now.monotonic_s
    await rig.run(20)
    rig.api.away_since_s = None
    announce(rig, second, rig.node.now.wall_s + 60)
    await rig.run(1)
    assert stop_file(tmp_path / "pods", second).read_text().endswith("notice_s=39\n")


async def test_an_announcement_that_nobody_of_coda_wrote_tells_nobody(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=1, tune="off", stop_notices=True)
    uid = submit(rig)
    say(tmp_path / "pods", uid, step=5)
    for text in ("", "now", "[]", "{}", '{"id":"../x","cause":"Migrate","noticeSeconds":60,"until":""}', "[" * 5000):
        rig.node.works[uid].annotations = {ANNOTATION_STOP: text}
        await rig.run(1)
    assert not stop_file(tmp_path / "pods", uid).exists()
    assert (told(rig) or {})["step"] == 5


async def test_nobody_is_told_unless_that_is_switched_on(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=1, tune="off")
    uid = submit(rig)
    say(tmp_path / "pods", uid, step=5)
    announce(rig, uid, rig.node.now.wall_s + 50)
    await rig.run(2)
    assert not stop_file(tmp_path / "pods", uid).exists()


async def test_a_directory_that_cannot_be_written_is_a_problem_and_harms_nothing(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    rig = make_rig(pods_dir=tmp_path / "pods", progress_s=1, tune="off", stop_notices=True)
    uid = submit(rig)
    say(tmp_path / "pods", uid, step=5)
    (stop_file(tmp_path / "pods", uid) / "full").mkdir(parents=True)
    announce(rig, uid, rig.node.now.wall_s + 50)
    await rig.run(3)
    assert (told(rig) or {})["step"] == 5
