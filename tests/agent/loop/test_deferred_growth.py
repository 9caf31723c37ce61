"""The whole agent where a kubelet defers growth: the wish ends by its deadline, and nothing of it is applied later."""

from __future__ import annotations

from coda.allocator import TuningConfig, TuningPhase
from coda.allocator.resize import Resize, ResizeState
from coda.policy import PolicyConfig
from coda_kube.objects.tuning_status import resize_from_json
from coda_lab.emulators.cluster_rig import EmulatedCluster
from coda_lab.emulators.load import Curved
from tests.agent.loop.conftest import MakeRig
from tests.core.allocator.curves import linear_then_drop

START, OPTIMUM = 4, 8
DEADLINE_S = int(PolicyConfig().resize_deadline_s)


def hungry(make_rig: MakeRig) -> EmulatedCluster:
    """A job that needs more than it has, on a node whose kubelet defers every growth."""
    cluster = EmulatedCluster(make_rig(window_s=30))
    cluster.submit("train", start=START, trainer=Curved(curve=linear_then_drop(OPTIMUM, 0.9))).defers = True
    return cluster


def resize_of(cluster: EmulatedCluster) -> Resize | None:
    return resize_from_json(cluster.status("train"))


async def until(cluster: EmulatedCluster, state: ResizeState, limit_s: int) -> Resize:
    for _ in range(limit_s):
        await cluster.run(1)
        resize = resize_of(cluster)
        if resize is not None and resize.state is state:
            return resize
    raise AssertionError(cluster.status("train"))


async def test_growth_deferred_until_its_deadline_is_refused_and_taken_back(make_rig: MakeRig) -> None:
    cluster = hungry(make_rig)
    deferred = await until(cluster, ResizeState.DEFERRED, 300)
    refused = await until(cluster, ResizeState.REFUSED, DEADLINE_S + 5)
    assert (refused.sequence, refused.reason) == (deferred.sequence, "DeadlineExceeded")
    size = cluster.jobs["train"].size
    assert size.wanted_m == size.allocated_m == 3000


async def test_what_was_deferred_is_not_applied_once_there_is_room_but_wished_for_again(make_rig: MakeRig) -> None:
    cluster = hungry(make_rig)
    await cluster.until_done()
    job, tuning = cluster.jobs["train"], cluster.tuning("train")
    assert (tuning.phase, tuning.best_cores, job.applied) == (TuningPhase.TUNED, START, [3])
    assert "4 cores per rank would do, but it keeps 3" in tuning.message
    job.defers = False
    assert tuning.wish is not None
    due_s = tuning.wish.since_s + TuningConfig().wish_again_s
    await cluster.run(int(due_s - cluster.rig.node.now.wall_s) - 2)
    assert job.applied == [3]
    await cluster.run(15)
    assert (job.applied, cluster.rig.node.limit_of(job.work)) == ([3, START], START)


async def test_growth_that_finds_room_before_its_deadline_is_measured(make_rig: MakeRig) -> None:
    cluster = hungry(make_rig)
    await until(cluster, ResizeState.DEFERRED, 300)
    cluster.jobs["train"].defers = False
    await cluster.until_done()
    assert cluster.rig.node.limit_of(cluster.jobs["train"].work) == OPTIMUM
