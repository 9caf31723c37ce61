"""The whole agent on a node with a rank that another node's agent tunes: it reports each of its windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coda.errors import InvalidInput
from coda_agent.gpus import Moment, Snapshot
from coda_agent.tuning.rank_windows import RankWindows
from coda_agent.tuning.windows import Windows
from coda_kube.objects.names import ANNOTATION_CORES, LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID, LABEL_RANK
from coda_lab.emulators.cgroups.kubelet import Quality
from coda_lab.emulators.cluster_rig import EmulatedCluster
from coda_lab.emulators.load import Trainer
from coda_lab.emulators.node import MAIN, Work
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.rig import Rig

WINDOW_S = 30
NEEDS = 6


def rank(rig: Rig, number: int, *, auto: bool = True) -> Work:
    labels = {LABEL_JOB: "train", LABEL_JOB_UID: "uid-train", LABEL_ATTEMPT: "1", LABEL_RANK: str(number)}
    return rig.node.start(
        f"train-1-{number}",
        cores=4,
        demand_cores=NEEDS,
        trainer=Trainer(best=0.9, cores_needed=NEEDS),
        gpus=2,
        labels=labels,
        annotations={ANNOTATION_CORES: "auto"} if auto else {},
        quality=Quality.GUARANTEED,
    )


def reported(rig: Rig) -> list[dict[str, Any]]:
    return list(rig.api.profiles[-1]["status"].get("ranks") or ())


async def test_each_window_of_a_rank_is_reported_with_the_cores_it_had(make_rig: MakeRig) -> None:
    rig = make_rig(window_s=WINDOW_S)
    work = rank(rig, 1)
    await rig.run(10 + WINDOW_S + 5)
    (first,) = reported(rig)
    told = {name: first[name] for name in ("jobUID", "attempt", "rank", "coresPerReplica", "heldUp")}
    assert told == {"jobUID": "uid-train", "attempt": 1, "rank": 1, "coresPerReplica": 4, "heldUp": True}
    assert first["gpuUtilization"] == pytest.approx(0.9 * 4 / NEEDS, abs=0.01)
    assert first["cpuCores"] == pytest.approx(4, abs=0.1)
    rig.node.kubelet.resize(work.uid, MAIN, 8)
    await rig.run(10 + WINDOW_S + 10)
    (second,) = reported(rig)
    assert (second["coresPerReplica"], second["heldUp"]) == (8, False)
    assert second["window"] != first["window"]
    assert second["gpuUtilization"] == pytest.approx(0.9, abs=0.01)
    rig.node.stop(work)
    await rig.run(70)
    assert reported(rig) == []


async def test_a_rank_with_other_cores_than_its_kubelet_says_reports_that_alone(make_rig: MakeRig) -> None:
    rig = make_rig(window_s=WINDOW_S)
    work = rank(rig, 1)
    await rig.run(5)
    rig.node.tree.write(f"{rig.node.kubelet.pods[work.uid].containers[MAIN].path}/cpu.max", "200000 100000")
    await rig.run(10 + WINDOW_S + 5)
    (first,) = reported(rig)
    assert first["otherCores"] is True
    assert "gpuUtilization" not in first


@pytest.mark.parametrize(
    ("number", "auto"),
    [pytest.param(0, True, id="rank 0 is tuned here"), pytest.param(1, False, id="its user chose its cores")],
)
async def test_what_nobody_elsewhere_tunes_is_not_reported(make_rig: MakeRig, number: int, auto: bool) -> None:
    rig = make_rig(window_s=WINDOW_S)
    rank(rig, number, auto=auto)
    await rig.run(10 + 2 * WINDOW_S + 10)
    assert all("ranks" not in profile["status"] for profile in rig.api.profiles)


async def test_a_rank_beside_its_rank_0_is_not_reported(make_rig: MakeRig) -> None:
    rig = make_rig(window_s=WINDOW_S)
    for number in (0, 1):
        rank(rig, number)
    await rig.run(10 + 2 * WINDOW_S + 10)
    assert all("ranks" not in profile["status"] for profile in rig.api.profiles)


async def test_time_that_passes_while_the_gpus_are_asked_counts_in_the_next_window(make_rig: MakeRig) -> None:
    """On a busy node that takes up to half a second: CPU use would be as wrong as that is long."""
    rig = make_rig()
    work = rank(rig, 1)
    await rig.run(5)
    senses = rig.agent.sensor
    ask = senses.gpus.sense

    def asked_late(now: Moment) -> Snapshot:
        rig.node.flow(0.5)
        return ask(now)

    senses.gpus.sense = asked_late  # type: ignore[method-assign]
    rig.node.advance()
    seen = senses.sense(rig.api.pods(), rig.node.now)
    assert seen.cpu_by_pod[work.uid].cores == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize("error", [InvalidInput("it must be finite"), OverflowError("it must be finite")])
async def test_numbers_that_cannot_be_end_the_tuning_of_their_job_alone(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    rig = make_rig(window_s=WINDOW_S)
    cluster = EmulatedCluster(rig)
    for name in ("bad", "good"):
        cluster.submit(name, start=4, trainer=Trainer(best=0.9, cores_needed=NEEDS))
    for number in (1, 2):
        rank(rig, number)
    raise_for(monkeypatch, Windows, lambda job: job.name == "bad", error)
    raise_for(monkeypatch, RankWindows, lambda pod: pod.name == "train-1-1", error)
    await cluster.run(10 + WINDOW_S + 10)
    assert [report["rank"] for report in reported(rig)] == [2]
    assert "tuning" in cluster.status("good")
    assert caplog.text.count("job default/bad is not tuned: it must be finite") == 1
    assert caplog.text.count("pod default/train-1-1 is not measured for its job: it must be finite") == 1


def raise_for(
    monkeypatch: pytest.MonkeyPatch,
    windows: type[Windows] | type[RankWindows],
    is_bad: Callable[[Any], bool],
    error: Exception,
) -> None:
    """Let the step of one job or pod raise."""
    step: Any = windows.step

    def stepped(self: Any, of: Any, seen: Any) -> Any:
        if is_bad(of):
            raise error
        return step(self, of, seen)

    monkeypatch.setattr(windows, "step", stepped)
