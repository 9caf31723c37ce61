from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda_agent.gpus.devices import Gpu, GpuProcess, GpuReading, Health, Instance
from coda_agent.gpus.processes import GpuUser, ProcessOwners, users_of
from coda_agent.host.files import Files

UID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
NEXT_UID = "11111111-bbbb-cccc-dddd-eeeeeeeeeeee"


def run(proc: Path, pid: int, started: int, uid: str | None) -> None:
    """A process `pid` begun at `started` ticks, in a pod's cgroup."""
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    fields = " ".join(["0"] * 18)
    (folder / "stat").write_text(f"{pid} (python (train) 3) S {fields} {started} 0 0\n")
    path = "/user.slice" if uid is None else f"/kubepods/burstable/pod{uid}/{'f' * 64}"
    (folder / "cgroup").write_text(f"0::{path}\n")


@pytest.fixture
def owners(tmp_path: Path) -> ProcessOwners:
    return ProcessOwners(Files(proc=tmp_path))


def test_a_process_belongs_to_the_pod_of_its_cgroup(tmp_path: Path, owners: ProcessOwners) -> None:
    run(tmp_path, 41, 100, UID)
    run(tmp_path, 42, 100, None)
    assert owners.identify([42, 41, 41]) == {41: GpuUser(pid=41, pod_uid=UID), 42: GpuUser(pid=42, pod_uid=None)}


def test_a_process_that_is_gone_is_nobody(tmp_path: Path, owners: ProcessOwners) -> None:
    run(tmp_path, 41, 100, UID)
    assert owners.identify([41, 43]) == {41: GpuUser(pid=41, pod_uid=UID)}


def test_a_pid_used_again_is_another_process(tmp_path: Path, owners: ProcessOwners) -> None:
    run(tmp_path, 41, 100, UID)
    owners.identify([41])
    run(tmp_path, 41, 900, NEXT_UID)
    assert owners.identify([41])[41].pod_uid == NEXT_UID


def test_a_known_process_is_not_looked_up_again(tmp_path: Path, owners: ProcessOwners) -> None:
    run(tmp_path, 41, 100, UID)
    owners.identify([41])
    (tmp_path / "41" / "cgroup").unlink()
    assert owners.identify([41])[41].pod_uid == UID


def test_a_pid_that_changes_hands_while_it_is_read_is_left_out(tmp_path: Path) -> None:
    run(tmp_path, 41, 100, UID)

    def read_slowly(text: str) -> str | None:
        run(tmp_path, 41, 900, NEXT_UID)
        return UID

    assert ProcessOwners(Files(proc=tmp_path), read_slowly).identify([41]) == {}


def test_a_process_that_cannot_be_read_belongs_to_no_known_pod(tmp_path: Path, owners: ProcessOwners) -> None:
    (tmp_path / "41" / "stat").mkdir(parents=True)
    assert owners.identify([41]) == {41: GpuUser(pid=41, pod_uid=None)}


@given(stat=st.binary(max_size=200), cgroup=st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_in_proc_names_no_pod(tmp_path: Path, stat: bytes, cgroup: bytes) -> None:
    run(tmp_path, 41, 100, UID)
    (tmp_path / "41" / "cgroup").write_bytes(cgroup)
    assert ProcessOwners(Files(proc=tmp_path)).identify([41])[41].pod_uid is None
    (tmp_path / "41" / "stat").write_bytes(stat)
    assert ProcessOwners(Files(proc=tmp_path)).identify([41]).keys() <= {41}


def test_this_process_is_found_in_the_real_proc() -> None:
    assert ProcessOwners(Files()).identify([os.getpid()]).keys() == {os.getpid()}


def reading(gpu: Gpu, *processes: tuple[int, int | None]) -> GpuReading:
    listed = tuple(GpuProcess(pid=pid, memory_bytes=None, gpu_instance=part) for pid, part in processes)
    return GpuReading(gpu=gpu, health=Health.READY, processes=listed)


def test_users_are_told_per_gpu_and_per_slice(tmp_path: Path, owners: ProcessOwners) -> None:
    whole = Gpu(uuid="GPU-1", index=0, minor=0, name="", pci_bus_id="", memory_bytes=None)
    part = Instance(uuid="MIG-5", gpu_uuid="GPU-2", gpu_instance=5, compute_instance=0, memory_bytes=1)
    cut = Gpu(uuid="GPU-2", index=1, minor=1, name="", pci_bus_id="", memory_bytes=None, mig=True, instances=(part,))
    blind = Gpu(uuid="GPU-3", index=2, minor=2, name="", pci_bus_id="", memory_bytes=None)
    for pid in (41, 42, 43):
        run(tmp_path, pid, 100, UID)
    readings = [reading(whole, (41, None)), reading(cut, (42, 5), (43, 9)), GpuReading(gpu=blind, health=Health.LOST)]
    found = users_of(readings, owners)
    assert {uuid: [user.pid for user in users] for uuid, users in found.items()} == {"GPU-1": [41], "MIG-5": [42]}
