"""GPUs that a pod has by a dynamic resource claim are its own: they were disputed, "given to nobody"."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda_agent.claimed_device import ClaimedDevice
from coda_agent.cluster import Claims
from coda_agent.gpus.ownership import Belief
from coda_lab.emulators.load import Trainer
from tests.agent.loop.conftest import MakeRig

DEVICE = ClaimedDevice(driver="gpu.nvidia.com", pool="n1", device="gpu-0")


@pytest.mark.parametrize("kubelet_tells", [True, False], ids=["a kubelet that lists claims", "an older kubelet"])
async def test_a_claimed_gpu_belongs_to_its_pod(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, kubelet_tells: bool
) -> None:
    rig = make_rig()
    work = rig.node.start("notebook", cores=4, trainer=Trainer(cores_needed=4), gpus=1)
    grants = [replace(one, device_ids=(), claimed=(DEVICE,) * kubelet_tells) for one in rig.node.grants()]
    monkeypatch.setattr(rig.node, "grants", lambda: grants)
    await rig.run(5)
    senses = await rig.loop.round()
    assert {one.belief for one in senses.ownerships if one.strangers} == {Belief.DISPUTED}

    (uuid,) = work.devices
    rig.api.claimed = Claims(devices_by_pod={work.uid: (("main", DEVICE),)}, uuid_by_device={DEVICE: uuid})
    await rig.run(1)
    senses = await rig.loop.round()
    (owned,) = [one for one in senses.ownerships if one.place.uuid == uuid]
    assert owned.belief is Belief.CONFIRMED
    assert [(owner.pod_uid, owner.container) for owner in owned.owners] == [(work.uid, "main")]


async def test_a_pod_that_may_only_watch_a_gpu_does_not_share_it(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    work = rig.node.start("train", cores=4, trainer=Trainer(cores_needed=4), gpus=1)
    monitor = rig.node.start("monitor", cores=1)
    grants = [replace(one, device_ids=(), claimed=(DEVICE,)) for one in rig.node.grants()]
    monkeypatch.setattr(rig.node, "grants", lambda: grants)
    devices = {work.uid: (("main", DEVICE),), monitor.uid: ()}
    rig.api.claimed = Claims(devices_by_pod=devices, uuid_by_device={DEVICE: work.devices[0]})
    await rig.run(5)
    senses = await rig.loop.round()
    (owned,) = [one for one in senses.ownerships if one.place.uuid == work.devices[0]]
    assert [owner.pod_uid for owner in owned.owners] == [work.uid]
