"""The whole service against a kubelet that is played on real sockets: it starts again, forgets, and talks nonsense."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc
import pytest

from coda.errors import Outage
from coda.model.seats import SHARING
from coda_agent.gpus import GpuReading, Health
from coda_agent.gpus.allocations import Grant
from coda_agent.gpus.devices import Gpu
from coda_agent.host import StateDir
from coda_agent.seats import Seats
from coda_agent.seats.plugin_socket import LONGEST_PAUSE_S, UNWATCHED_S, register_with_kubelet
from coda_agent.seats.seats import COPY_AGAIN_S, PLACES
from coda_agent.settings import Settings
from coda_lab.emulators.device_manager import CHECKPOINT, DeviceManager

PATIENCE_S = 300.0
FIRST, SECOND = "coda.scheduler/gpu-0", "coda.scheduler/gpu-1"
_T = TypeVar("_T")


def reading(number: int, health: Health = Health.READY, *, mig: bool = False) -> GpuReading:
    bus = f"0000:0{number}:00.0"
    gpu = Gpu(uuid=f"GPU-{number}", index=0, minor=0, name="", pci_bus_id=bus, memory_bytes=1, mig=mig)
    return GpuReading(gpu=replace(gpu, numa_nodes=frozenset({number})), health=health)


BOTH = (reading(0), reading(1))


def aside(work: Callable[[], _T]) -> asyncio.Future[_T]:
    """The kubelet has threads of its own."""
    return asyncio.get_running_loop().run_in_executor(None, work)


class Rig:
    """An agent's seats, on a clock of the test, and the kubelet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubelet = DeviceManager(folder / "device-plugins")
        self.kubelet.folder.mkdir()
        (folder / "bundle/python").mkdir(parents=True)
        (folder / "bundle/lib").mkdir()
        (folder / "bundle/python/sitecustomize.py").write_text("")
        self.now_s = 1000.0
        self.tries: list[str] = []
        self.seats = self.start()

    def start(self) -> Seats:
        """A new process of the agent."""
        settings = Settings(
            node_name="n1",
            device_plugins=self.kubelet.folder,
            sharing_bundle=self.folder / "bundle",
            sharing_framework=self.folder / "framework",
        )

        def register(folder: Path, resource: str, endpoint: str) -> None:
            self.tries.append(resource)
            register_with_kubelet(folder, resource, endpoint)

        self.seats = Seats(settings, StateDir(self.folder / "state"), lambda: self.now_s, register)
        return self.seats

    async def round(
        self, readings: Sequence[GpuReading] = BOTH, *, grants: Sequence[Grant] | None = None, after_s: float = 1.0
    ) -> tuple[str, ...]:
        """A round and what it began; its problems."""
        self.now_s += after_s
        self.seats.round(readings, None)
        await self.seats.settled()
        problems = self.seats.round(readings, grants)
        await self.seats.settled()
        return problems

    async def sees(self, resource: str, healthy: int) -> None:
        """Wait until the kubelet has so many of a resource."""
        assert await aside(lambda: self.kubelet.wait_for(lambda: self.kubelet.healthy(resource) == healthy))

    async def admit(self, pod: str, resource: str = FIRST) -> dict[str, str] | None:
        """The environment of a pod that asks for one; None: it waits."""
        answer = await aside(lambda: self.kubelet.admit(pod, resource))
        return None if answer is None else dict(answer.envs)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    await aside(made.kubelet.start)
    yield made
    await made.seats.stop()
    await aside(made.kubelet.kill)


async def test_every_gpu_has_four_seats_and_the_fifth_pod_waits_until_one_is_free(rig: Rig) -> None:
    assert await rig.round() == ()
    await rig.sees(FIRST, 4)
    await rig.sees(SECOND, 4)
    await rig.sees(SHARING, PLACES)
    given = [await rig.admit(f"pod-{number}") for number in range(4)]
    assert [environ and environ["NVIDIA_VISIBLE_DEVICES"] for environ in given] == ["GPU-0"] * 4
    assert len({device for _resource, device in rig.kubelet.taken.values()}) == 4
    assert await rig.admit("fifth") is None
    assert (await rig.admit("other", SECOND) or {})["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    rig.kubelet.release("pod-2")
    assert await rig.admit("fifth") is not None
    files = rig.folder / "framework"
    (version,) = files.iterdir()
    answer = await aside(lambda: rig.kubelet.admit("whole", SHARING))
    assert answer is not None
    assert str(version / "python") in {mount.host_path for mount in answer.mounts}


async def test_a_kubelet_that_starts_again_is_registered_with_at_once_and_what_it_gave_stays_given(rig: Rig) -> None:
    await rig.round()
    await rig.sees(FIRST, 4)
    for number in range(4):
        await rig.admit(f"pod-{number}")
    (rig.kubelet.folder / CHECKPOINT).write_text("kept")
    await aside(rig.kubelet.restart)
    assert rig.kubelet.healthy(FIRST) == 0
    assert await rig.round() == ()
    await rig.sees(FIRST, 4)
    await rig.sees(SHARING, PLACES)
    assert await rig.admit("fifth") is None
    assert sorted(path.name for path in rig.kubelet.folder.iterdir()) == [
        "coda-gpu-0.sock",
        "coda-gpu-1.sock",
        "coda-sharing.sock",
        "kubelet.sock",
        CHECKPOINT,
    ]


async def test_a_kubelet_that_is_down_is_asked_less_and_less_often_and_said_once_a_resource(rig: Rig) -> None:
    await rig.round()
    await rig.sees(FIRST, 4)
    await aside(rig.kubelet.kill)
    rig.tries.clear()
    for _ in range(120):
        problems = await rig.round((reading(0),))
    assert len(rig.tries) <= 3 * (8 + 120 / LONGEST_PAUSE_S)
    assert all("did not take coda.scheduler/" in sentence for sentence in problems)
    await aside(rig.kubelet.start)
    await rig.round()
    await rig.sees(FIRST, 4)


async def test_a_kubelet_that_forgot_is_told_again_and_one_that_listens_is_left_in_peace(rig: Rig) -> None:
    await rig.round()
    await rig.sees(FIRST, 4)
    for _ in range(30):
        await rig.round()
    assert sorted(rig.kubelet.registered) == sorted([FIRST, SECOND, SHARING])
    rig.kubelet._channels[FIRST].close()  # it no longer listens to this one
    await rig.sees(FIRST, 0)
    async with asyncio.timeout(PATIENCE_S):
        while rig.kubelet.registered.count(FIRST) == 1:
            await rig.round(after_s=UNWATCHED_S)
    await rig.sees(FIRST, 4)


async def test_an_agent_that_ended_is_followed_by_one_with_the_same_numbers(rig: Rig) -> None:
    await rig.round()
    await rig.sees(SECOND, 4)
    await rig.admit("pod", SECOND)
    await rig.seats.stop()
    await rig.sees(SECOND, 0)
    assert [path.name for path in rig.kubelet.folder.iterdir()] == ["kubelet.sock"]
    rig.start()
    await rig.round((reading(1),))  # the other card is gone by now
    await rig.sees(SECOND, 4)
    assert rig.kubelet.health[FIRST] == dict.fromkeys(rig.kubelet.health[FIRST], "Unhealthy")
    assert rig.seats.number_by_gpu == {"GPU-0": 0, "GPU-1": 1}


async def test_a_card_that_is_lost_gets_nobody_and_one_that_vanishes_has_no_seats(rig: Rig) -> None:
    await rig.round()
    await rig.sees(FIRST, 4)
    await rig.admit("pod")
    await rig.round((reading(0, Health.LOST), reading(1)))
    await rig.sees(FIRST, 0)
    assert len(rig.kubelet.health[FIRST]) == 4  # not well, but there: the pod's seat is known
    assert await rig.admit("next") is None
    await rig.round((reading(1),))
    assert await aside(lambda: rig.kubelet.wait_for(lambda: rig.kubelet.health[FIRST] == {}))
    await rig.sees(SECOND, 4)
    await rig.round()
    await rig.sees(FIRST, 4)


async def test_a_card_in_slices_is_not_shared(rig: Rig) -> None:
    await rig.round((reading(0, mig=True), reading(1)))
    await rig.sees(SECOND, 4)
    assert rig.kubelet.health.get(FIRST, {}) == {}


async def test_before_the_driver_has_answered_nothing_is_offered(rig: Rig) -> None:
    await rig.round(())
    assert rig.kubelet.registered == []


async def test_without_the_files_seats_are_not_well_and_the_copy_is_tried_again(rig: Rig) -> None:
    shutil.rmtree(rig.folder / "bundle")
    (sentence,) = await rig.round()
    assert sentence.startswith("GPUs cannot be shared: there are no files for jobs in ")
    assert await aside(lambda: rig.kubelet.wait_for(lambda: len(rig.kubelet.health.get(FIRST, {})) == 4))
    assert rig.kubelet.healthy(FIRST) == 0
    (rig.folder / "bundle/lib").mkdir(parents=True)
    (rig.folder / "bundle/python").mkdir()
    assert await rig.round() == (sentence,)
    assert await rig.round(after_s=COPY_AGAIN_S) == ()
    await rig.sees(FIRST, 4)


async def test_an_older_version_stays_while_a_pod_may_have_it(rig: Rig) -> None:
    old = rig.folder / "framework" / "old"
    old.mkdir(parents=True)
    seated = Grant(namespace="default", pod="p", container="main", device_ids=((FIRST, "GPU-0::1"),))
    whole = replace(seated, device_ids=(("nvidia.com/gpu", "GPU-1"), (SHARING, "place-1")))
    plain = replace(seated, device_ids=(("nvidia.com/gpu", "GPU-1"),))
    for grants in (None, [seated], [whole]):
        await rig.round(grants=grants)
        assert old.is_dir()
    await rig.round(grants=[plain])
    assert not old.exists()
    assert len(list((rig.folder / "framework").iterdir())) == 1


async def test_a_kubelet_that_talks_nonsense_is_answered_and_harms_nothing(rig: Rig) -> None:
    await rig.round()
    await rig.sees(FIRST, 4)
    for method, request, code in (
        ("Allocate", b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        ("Sing", b"", grpc.StatusCode.UNIMPLEMENTED),
        ("PreStartContainer", b"x", grpc.StatusCode.UNIMPLEMENTED),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            await aside(partial(rig.kubelet.call, FIRST, method, request))
        assert refused.value.code() is code
    assert await aside(lambda: rig.kubelet.call(FIRST, "Allocate", b"")) == b""  # for no container
    assert await rig.admit("pod") is not None


async def test_numbers_that_cannot_be_kept_offer_nothing(rig: Rig) -> None:
    shutil.rmtree(rig.folder / "state")
    (sentence,) = await rig.round()
    assert sentence == "GPUs cannot be shared: their numbers cannot be kept (No such file or directory)"
    assert rig.kubelet.registered == []


async def test_a_disk_that_answers_nothing_is_one_sentence_until_it_does(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await rig.round() == ()

    def fail(path: Path) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "is_dir", fail)
        assert await rig.round() == ("GPUs cannot be shared (Input/output error)",)
        assert await rig.round() == ("GPUs cannot be shared (Input/output error)",)
    await rig.round()
    assert await rig.round() == ()
    await rig.sees(FIRST, 4)


async def test_numbers_that_cannot_be_read_are_given_again(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    (rig.folder / "state/gpu-numbers").write_text("{")
    with caplog.at_level(logging.ERROR):
        await rig.round()
    assert "they are numbered again" in caplog.text
    assert rig.seats.number_by_gpu == {"GPU-0": 0, "GPU-1": 1}


async def test_the_second_of_two_agents_offers_nothing(rig: Rig) -> None:
    await rig.round()
    await rig.sees(FIRST, 4)
    first = rig.seats
    second = rig.start()
    problems = await rig.round()
    assert any("another program serves" in sentence for sentence in problems)
    await second.stop()
    rig.seats = first
    assert await rig.round() == ()
    assert await rig.admit("pod") is not None


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Outage, match=r"did not take coda\.scheduler/gpu-0: UNAVAILABLE"):
        register_with_kubelet(tmp_path / "nowhere", FIRST, "x.sock")
