"""A progress file may be anything that a container can make: the agent answers at once, and reads nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from coda.progress.job_report import MOST_BYTES
from coda_agent.progress import FoundReport, find_report

UID = "0a1b2c3d-0000-4000-8000-000000000001"
NOT_PLAIN = "the progress file is no plain file but a link, a folder, a pipe or a device"
TOO_LONG = "the progress file is longer than 64 KiB"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The pod's directory, where a kubelet keeps it."""
    path = tmp_path / "pods" / UID / "volumes" / "kubernetes.io~empty-dir" / "coda-job"
    path.mkdir(parents=True)
    return path


def test_a_plain_file_is_read(tmp_path: Path, folder: Path) -> None:
    (folder / "progress").write_bytes(b"step=1\n")
    assert find_report(tmp_path / "pods", UID) == FoundReport(b"step=1\n")


@pytest.mark.parametrize("uid", [UID, "gone", "..", "", "a/b", "../pods", "x" * 300])
def test_without_a_file_there_is_nothing(tmp_path: Path, folder: Path, uid: str) -> None:
    assert find_report(tmp_path / "pods", uid) == FoundReport()
    assert find_report(tmp_path / "nowhere", uid) == FoundReport()


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path.parent)
        server.bind(path.name)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path.symlink_to("/etc/hostname"), id="a link to a file of the host"),
        pytest.param(lambda path: path.symlink_to(path), id="a link to itself"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), id="a link to a device"),
        pytest.param(lambda path: os.mkfifo(path), id="a pipe that nobody writes to"),
        pytest.param(lambda path: path.mkdir(), id="a folder"),
        pytest.param(_socket, id="a socket"),
    ],
)
def test_what_is_no_plain_file_is_not_opened(
    tmp_path: Path, folder: Path, make: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(folder / "progress")
    assert find_report(tmp_path / "pods", UID) == FoundReport(fault=NOT_PLAIN)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")
def test_a_device_is_not_opened(tmp_path: Path, folder: Path) -> None:
    try:
        os.mknod(folder / "progress", 0o666 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("no device files may be made here")
    assert find_report(tmp_path / "pods", UID) == FoundReport(fault=NOT_PLAIN)


def test_a_link_on_the_way_is_not_followed(tmp_path: Path, folder: Path) -> None:
    (folder / "progress").write_bytes(b"step=1\n")
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert find_report(tmp_path / "pods", UID).content is None


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (MOST_BYTES, FoundReport(b"\0" * MOST_BYTES)),
        (MOST_BYTES + 1, FoundReport(fault=TOO_LONG)),
        (1 << 40, FoundReport(fault=TOO_LONG)),
    ],
)
def test_at_most_64_kib_are_read_however_long_the_file_is(
    tmp_path: Path, folder: Path, size: int, expected: FoundReport
) -> None:
    with (folder / "progress").open("wb") as file:
        file.truncate(size)
    assert find_report(tmp_path / "pods", UID) == expected


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything here; as the agent in its container it does not")
def test_a_file_that_only_its_owner_may_read_is_told_of(tmp_path: Path, folder: Path) -> None:
    (folder / "progress").touch(0)
    assert find_report(tmp_path / "pods", UID).fault.endswith("let everybody read it (mode 0644)")


def test_no_descriptor_stays_open(tmp_path: Path, folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  it counts itself, both times
    (folder / "progress").symlink_to("/etc/hostname")
    for _ in range(20):
        find_report(tmp_path / "pods", UID)
        find_report(tmp_path / "pods", "gone")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
