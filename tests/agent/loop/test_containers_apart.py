"""A runtime with another cgroup driver than the kubelet puts containers outside of their pods' cgroups."""

from __future__ import annotations

from coda_agent.gpus.ownership import Belief
from coda_lab.emulators.cgroups.kubelet import Setup
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.rig import Rig
from tests.agent.loop.test_contention import victim


def told(rig: Rig) -> list[str]:
    sentences = rig.api.profiles[-1]["status"]["lacks"]
    return [sentence for sentence in sentences if "cgroup driver" in sentence]


async def test_that_nothing_of_pods_is_measured_there_is_said(make_rig: MakeRig) -> None:
    rig = make_rig(setup=Setup(has_cgroupfs_runtime=True))
    await rig.run(70)
    assert told(rig) == []  # there is no pod yet
    train = victim(rig.node)
    await rig.run(70)
    assert len(told(rig)) == 1
    found = rig.agent.sensor.sense(rig.api.pods(), rig.node.now).ownerships
    assert {one.belief for one in found if train.uid in {owner.pod_uid for owner in one.owners}} == {Belief.CONFIRMED}


async def test_nothing_is_said_where_containers_are_in_their_pods(make_rig: MakeRig) -> None:
    rig = make_rig()
    victim(rig.node)
    await rig.run(130)
    assert told(rig) == []
