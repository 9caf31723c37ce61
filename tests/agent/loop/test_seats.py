"""The whole agent on an emulated node, with sharing switched on: seats in the profile and at the kubelet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coda_agent.loop import REMIND_S, SAY_AGAIN_S
from coda_agent.report.profile_writer import NEWS_S
from coda_agent.seats import Seats
from coda_agent.sharing import SharedGpus
from coda_lab.emulators.device_manager import DeviceManager
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.test_contention import aggressor, contended, is_untouched, victim


async def test_a_gpu_has_a_number_in_the_profile_and_seats_at_the_kubelet(make_rig: MakeRig, tmp_path: Path) -> None:
    for folder in ("bundle/lib", "bundle/python"):
        (tmp_path / folder).mkdir(parents=True)
    with DeviceManager(tmp_path / "plugins") as kubelet:
        rig = make_rig(
            sharing=True,
            sharing_socket=tmp_path / "run" / "agent.sock",
            sharing_bundle=tmp_path / "bundle",
            sharing_framework=tmp_path / "framework",
            device_plugins=kubelet.folder,
        )
        async with asyncio.timeout(300):
            while kubelet.healthy("coda.scheduler/gpu-0") < 4:
                await rig.run(1)
                await asyncio.sleep(0.01)
        await rig.run(120)
        gpus = rig.api.profiles[-1]["status"]["gpus"]
        assert sorted(gpu["index"] for gpu in gpus) == list(range(len(gpus)))
        assert sorted(kubelet.registered) == sorted(
            [*(f"coda.scheduler/gpu-{number}" for number in range(len(gpus))), "coda.scheduler/sharing"]
        )
        await rig.loop.end()
        assert [path.name for path in kubelet.folder.iterdir()] == ["kubelet.sock"]


async def test_who_has_no_room_on_a_gpu_is_told_in_the_profile_and_once_on_its_pod(
    make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a CPU job stands for the pod with the seat: who it is, is the coordinator's word."""
    rig = make_rig(sharing=True, sharing_socket=tmp_path / "run" / "agent.sock", device_plugins=tmp_path / "plugins")
    owner, guest = victim(rig.node), aggressor(rig.node, "guest", times_peak=0.1)
    await rig.run(70)
    told = rig.api.profiles[-1]["status"]["gpus"]
    (gpu,) = [one["uuid"] for one in told if one.get("podUIDs") == [owner.uid]]
    assert not any("crowdedOutPodUIDs" in one for one in told)
    assert {one["uuid"]: one.get("ownerHeard") for one in told if "ownerHeard" in one} == {gpu: False}
    monkeypatch.setattr(SharedGpus, "heard", property(lambda _shared: frozenset([gpu])))
    crowded = {gpu: (guest.uid, "gone")}
    monkeypatch.setattr(SharedGpus, "to_move", property(lambda _shared: crowded))
    await rig.run(130)
    (row,) = [one for one in rig.api.profiles[-1]["status"]["gpus"] if "crowdedOutPodUIDs" in one]
    assert (row["uuid"], row["crowdedOutPodUIDs"]) == (gpu, [guest.uid, "gone"])
    assert row["ownerHeard"] is True
    assert rig.told("CrowdedOut") == ["guest"]
    (event,) = [one for one in rig.api.events if one["reason"] == "CrowdedOut"]
    assert event["type"] == "Warning"
    assert event["message"].startswith(f"stands still: {gpu} has no room for it")
    crowded.clear()
    await rig.run(70)
    assert not any("crowdedOutPodUIDs" in one for one in rig.api.profiles[-1]["status"]["gpus"])


async def test_whom_a_guaranteed_job_waits_for_is_told_within_seconds(
    make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(sharing=True, sharing_socket=tmp_path / "run" / "agent.sock", device_plugins=tmp_path / "plugins")
    owner, guest = victim(rig.node), aggressor(rig.node, "guest", times_peak=0.1)
    await rig.run(70)
    (gpu,) = [one["uuid"] for one in rig.api.profiles[-1]["status"]["gpus"] if one.get("podUIDs") == [owner.uid]]
    to_move = {gpu: (guest.uid,)}
    monkeypatch.setattr(SharedGpus, "to_move", property(lambda _shared: to_move))
    monkeypatch.setattr(SharedGpus, "awaited", property(lambda _shared: frozenset(to_move)))
    await rig.run(int(NEWS_S) + 2)
    (row,) = [one for one in rig.api.profiles[-1]["status"]["gpus"] if "ownerWaits" in one]
    assert (row["uuid"], row["ownerWaits"], row["crowdedOutPodUIDs"]) == (gpu, True, [guest.uid])
    (event,) = [one for one in rig.api.events if one["reason"] == "CrowdedOut"]
    assert event["message"].startswith("is stopped: ")
    to_move.clear()
    await rig.run(int(NEWS_S) + 2)
    assert not any("ownerWaits" in one for one in rig.api.profiles[-1]["status"]["gpus"]), "somebody is stopped for it"


async def test_an_owner_that_says_again_and_again_that_it_waits_is_one_event_on_its_guest(
    make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(sharing=True, sharing_socket=tmp_path / "run" / "agent.sock", device_plugins=tmp_path / "plugins")
    _, guest = victim(rig.node), aggressor(rig.node, "guest", times_peak=0.1)
    to_move: dict[str, tuple[str, ...]] = {}
    awaited: set[str] = set()
    monkeypatch.setattr(SharedGpus, "to_move", property(lambda _shared: to_move))
    monkeypatch.setattr(SharedGpus, "awaited", property(lambda _shared: frozenset(awaited)))
    for second in range(60):
        to_move |= {"GPU-x": (guest.uid,)}
        awaited |= {"GPU-x"} if second >= 20 else set()
        await rig.run(1)
        to_move.clear()
        await rig.run(1)
    said = [one["message"].split(":")[0] for one in rig.api.events if one["reason"] == "CrowdedOut"]
    assert said == ["stands still", "is stopped"]
    await rig.run(int(SAY_AGAIN_S))
    to_move |= {"GPU-x": (guest.uid,)}
    await rig.run(3)
    assert rig.told("CrowdedOut") == ["guest"] * 3


async def test_who_stands_still_for_hours_is_told_so_again_and_again(
    make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server forgets an event after an hour: then nothing said so."""
    rig = make_rig(sharing=True, sharing_socket=tmp_path / "run" / "agent.sock", device_plugins=tmp_path / "plugins")
    _, guest = victim(rig.node), aggressor(rig.node, "guest", times_peak=0.1)
    monkeypatch.setattr(SharedGpus, "to_move", property(lambda _shared: {"GPU-x": (guest.uid,)}))
    await rig.run(int(REMIND_S))
    assert rig.told("CrowdedOut") == ["guest"]
    await rig.run(3)
    assert rig.told("CrowdedOut") == ["guest"] * 2


async def test_whatever_goes_wrong_with_seats_at_the_end_throttles_are_undone(
    make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(seats: Seats) -> None:
        raise RuntimeError("an error of our own")

    rig = make_rig(sharing=True, sharing_socket=tmp_path / "run" / "agent.sock", device_plugins=tmp_path / "plugins")
    await contended(rig)
    assert not is_untouched(rig)
    with monkeypatch.context() as broken:
        broken.setattr(Seats, "stop", fail)
        with pytest.raises(RuntimeError):
            await rig.loop.end()
    assert is_untouched(rig)
    await rig.loop.end()
