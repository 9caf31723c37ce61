"""What a scrape every 30 s shows of GPUs that are busy for some of the seconds between two."""

from __future__ import annotations

import pytest

from coda_lab.emulators.load import Gpus, Trainer
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.rig import Rig

MEASURED = "coda_gpu_measured_seconds_total"


def seconds(rig: Rig, name: str, pod: str) -> float | None:
    """Of all GPUs of the pod; None: no such sample."""
    found = [
        sample.value
        for family in rig.registry.collect()
        for sample in family.samples
        if sample.name == name and sample.labels["pod"] == pod
    ]
    return sum(found) if found else None


async def test_the_counters_show_what_was_between_two_scrapes(make_rig: MakeRig) -> None:
    rig = make_rig()
    work = rig.node.start("train", cores=4, trainer=Trainer(best=0.9, cores_needed=4), gpus=2)
    busy, idle = work.gpus, Gpus(Trainer(best=0.0), seed=0)
    await rig.run(20)
    before = [seconds(rig, name, "train") or 0.0 for name in ("coda_gpu_busy_seconds_total", MEASURED)]
    for second in range(60):
        work.gpus = busy if second % 3 else idle  # the last second says nothing of the minute
        await rig.run(1)
    after = [seconds(rig, name, "train") or 0.0 for name in ("coda_gpu_busy_seconds_total", MEASURED)]
    assert after[0] - before[0] == pytest.approx(2 * 60 * 0.9 * 2 / 3, rel=0.05)
    assert after[1] - before[1] == pytest.approx(2 * 60)


async def test_time_in_which_nothing_was_measured_counts_as_neither_busy_nor_idle(make_rig: MakeRig) -> None:
    rig = make_rig()
    work = rig.node.start("train", cores=4, trainer=Trainer(best=0.9, cores_needed=4), gpus=1)
    await rig.run(20)
    before = seconds(rig, MEASURED, "train")
    rig.node.state.lose(work.devices[0])
    await rig.run(20)
    rig.node.state.lose(work.devices[0], 0)
    await rig.run(100)
    lasted = (seconds(rig, MEASURED, "train") or 0) - (before or 0)
    assert 0 < lasted < 105


async def test_the_counters_of_pods_that_are_gone_go_with_them(make_rig: MakeRig) -> None:
    rig = make_rig()
    work = rig.node.start("train", cores=4, trainer=Trainer(), gpus=1)
    await rig.run(20)
    assert seconds(rig, MEASURED, "train") is not None
    rig.node.stop(work)
    await rig.run(10)
    assert seconds(rig, MEASURED, "train") is None
