"""The whole agent beside GPUs that fail: what its NodeProfile tells of the driver's errors, when, and of whose pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coda_agent.gpus.devices import GpuXid, LibraryState, Snapshot
from coda_agent.gpus.samples import Moment
from coda_agent.host import StateDir
from coda_agent.report import XidRecord
from coda_agent.report.profile_writer import NEWS_S
from coda_agent.report.xid_record import KEPT_S, MOST, OWNER_KNOWN_S
from coda_agent.sensor import Senses
from coda_lab.emulators.agent_rig import Rig
from coda_lab.emulators.load import Trainer
from tests.agent.loop.conftest import MakeRig

SETTLED_S = 65  # the first profile is written, and the GPUs have settled


def told(rig: Rig) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rig.api.profiles[-1]["status"].get("xids", [])
    return found


def sensed(wall_s: float, *xids: GpuXid) -> Senses:
    at = Moment(monotonic_s=wall_s, wall_s=wall_s, node_wall_s=wall_s)
    return Senses(at=at, gpus=Snapshot(at_s=wall_s, library=LibraryState.READY, xids=xids))


def rank(rig: Rig, name: str) -> tuple[str, str]:
    """A pod with one GPU. Returns its uid and the GPU's."""
    work = rig.node.start(name, cores=4, trainer=Trainer(), gpus=1)
    return work.uid, work.devices[0]


async def test_an_error_is_written_within_seconds_with_the_pod_that_had_the_gpu(make_rig: MakeRig) -> None:
    rig = make_rig(tune="off")
    (uid, gpu), (_, other) = rank(rig, "a-1-0"), rank(rig, "b-1-0")
    await rig.run(SETTLED_S)
    assert rig.api.profiles[-1]["status"]["watchesXids"] is True
    assert told(rig) == []
    rig.node.state.raise_xid(gpu, 48)
    await rig.run(int(NEWS_S) + 1)
    (entry,) = told(rig)
    assert (entry["gpu"], entry["xid"], entry["count"], entry["podUIDs"]) == (gpu, 48, 1, [uid])
    rig.node.state.raise_xid(other, 31)
    await rig.run(int(NEWS_S) + 1)
    assert [one["xid"] for one in told(rig)] == [48, 31], "hardware first"


async def test_a_pod_that_ended_by_it_is_still_named(make_rig: MakeRig) -> None:
    rig = make_rig(tune="off")
    uid, gpu = rank(rig, "a-1-0")
    await rig.run(SETTLED_S)
    rig.node.state.raise_xid(gpu, 31)
    rig.node.stop(rig.node.works[uid])
    await rig.run(int(NEWS_S) + 1)
    assert [one["podUIDs"] for one in told(rig)] == [[uid]]


async def test_a_pod_that_fails_before_the_kubelet_has_said_what_it_got_is_named(make_rig: MakeRig) -> None:
    rig = make_rig(tune="off")
    await rig.run(SETTLED_S)
    rig.node.state.raise_xid(rig.node._free[0], 79)
    await rig.run(1)
    late, _ = rank(rig, "late-1-0")
    await rig.run(int(OWNER_KNOWN_S + NEWS_S))
    assert [one["podUIDs"] for one in told(rig)] == [[late]]


async def test_an_error_of_a_gpu_that_nobody_has_is_told_at_once_and_no_later_pod_is_blamed(make_rig: MakeRig) -> None:
    rig = make_rig(tune="off")
    await rig.run(SETTLED_S)
    rig.node.state.raise_xid(rig.node._free[0], 79)
    await rig.run(int(NEWS_S) + 1)
    assert [one["podUIDs"] for one in told(rig)] == [[]]
    await rig.run(int(OWNER_KNOWN_S))
    rank(rig, "later-1-0")
    await rig.run(SETTLED_S)
    assert [(one["podUIDs"], one["count"]) for one in told(rig)] == [([], 1)]


async def test_an_error_of_a_program_that_is_gone_is_no_new_pods(make_rig: MakeRig) -> None:
    rig = make_rig(tune="off")
    await rig.run(SETTLED_S)
    rig.node.state.raise_xid(rig.node._free[0], 31)
    await rig.run(1)
    rank(rig, "next-1-0")
    await rig.run(SETTLED_S)
    assert [one["podUIDs"] for one in told(rig)] == [[]]


async def test_equal_errors_are_one_entry_and_no_write_each(make_rig: MakeRig) -> None:
    rig = make_rig(tune="off")
    _, gpu = rank(rig, "a-1-0")
    await rig.run(SETTLED_S)
    rig.node.state.raise_xid(gpu, 31)
    await rig.run(int(NEWS_S) + 1)
    written = len(rig.api.profiles)
    for _ in range(40):
        rig.node.state.raise_xid(gpu, 31)
        await rig.run(1)
    assert len(rig.api.profiles) <= written + 1
    await rig.run(60)
    assert [one["count"] for one in told(rig)] == [41]


async def test_an_agent_that_was_killed_tells_what_it_saw_and_forgets_it_after_hours(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    rig = make_rig(tune="off")
    uid, gpu = rank(rig, "a-1-0")
    await rig.run(SETTLED_S)
    rig.node.state.raise_xid(gpu, 79)
    await rig.run(1)
    rig.kill()
    rig.start()
    await rig.run(SETTLED_S)
    assert [(one["xid"], one["podUIDs"]) for one in told(rig)] == [(79, [uid])]
    rig.node._seconds += int(KEPT_S)
    await rig.run(SETTLED_S)
    assert told(rig) == []


def test_an_error_stamped_by_a_clock_that_was_ahead_is_of_now(tmp_path: Path) -> None:
    """A machine may begin with the wrong time, until NTP sets it."""
    xid = GpuXid(uuid="GPU-0", xid=79)
    record = XidRecord(StateDir(tmp_path), reads_only=False)
    record.see(sensed(4e6, xid))
    record.store()
    set_back_s = 4e6 - 2 * KEPT_S
    record = XidRecord(StateDir(tmp_path), reads_only=False)
    assert record.see(sensed(set_back_s))
    record.store()
    record = XidRecord(StateDir(tmp_path), reads_only=False)
    assert not record.see(sensed(set_back_s + KEPT_S - 1))
    assert [(one.first_s, one.last_s) for one in record.entries] == [(set_back_s, set_back_s)]
    record.see(sensed(set_back_s + KEPT_S))
    assert record.entries == ()


async def test_without_events_the_profile_says_why_once(make_rig: MakeRig) -> None:
    rig = make_rig(tune="off")
    rig.node.state.fail("nvmlDeviceRegisterEvents", 4)
    rank(rig, "a-1-0")
    await rig.run(SETTLED_S)
    status = rig.api.profiles[-1]["status"]
    assert status["watchesXids"] is False
    assert sum("are not seen" in sentence for sentence in status["lacks"]) == 1


async def test_a_gpu_that_does_not_open_is_named_and_its_errors_are_not_seen(make_rig: MakeRig) -> None:
    rig = make_rig(tune="off")
    rig.node.state.fail("nvmlDeviceGetUUID", 999, uuid=rig.node.state.devices[-1].uuid)
    rank(rig, "a-1-0")
    await rig.run(SETTLED_S)
    status = rig.api.profiles[-1]["status"]
    assert status["watchesXids"] is False
    assert sum("does not open" in sentence for sentence in status["lacks"]) == 1


async def test_noise_never_pushes_out_the_hardware_and_the_file_may_be_garbage(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    rig = make_rig(tune="off")
    _, gpu = rank(rig, "a-1-0")
    await rig.run(SETTLED_S)
    rig.node.state.raise_xid(gpu, 79)
    await rig.run(1)
    with rig.node.state.batch():
        for xid in range(200, 200 + MOST + 10):
            rig.node.state.raise_xid(gpu, xid)
    await rig.run(SETTLED_S)
    assert len(told(rig)) == MOST
    assert told(rig)[0]["xid"] == 79
    for garbage in (b"{", b"[1]", b'[{"gpu": 1}]', b"\xff", json.dumps({"a": 1}).encode()):
        rig.agent.state_dir.replace("xids.json", garbage)
        assert XidRecord(rig.agent.state_dir, reads_only=False).entries == ()
