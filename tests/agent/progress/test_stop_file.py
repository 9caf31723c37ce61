"""The file `stop` is made in a stranger's directory: whatever is there, nothing else is written, and nobody waits."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from coda_agent.progress import tell_stop
from coda_kube.objects.pods.stops import Announcement

UID = "0a1b2c3d-0000-4000-8000-000000000001"
STOP = Announcement(id="plan-7", cause="Migrate", notice_s=60.0, until_s=0.0)
TEXT = "id=plan-7\ncause=Migrate\nnotice_s=57\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The pod's directory, where a kubelet keeps it."""
    path = tmp_path / "pods" / UID / "volumes" / "kubernetes.io~empty-dir" / "coda-job"
    path.mkdir(parents=True)
    return path


def tell(tmp_path: Path, left_s: float = 57.9, uid: str = UID) -> str:
    return tell_stop(tmp_path / "pods", uid, STOP, left_s)


def test_everybody_can_read_what_the_job_is_told(tmp_path: Path, folder: Path) -> None:
    old = os.umask(0o77)
    try:
        assert tell(tmp_path) == ""
    finally:
        os.umask(old)
    assert (folder / "stop").read_text() == TEXT
    assert stat.S_IMODE((folder / "stop").stat().st_mode) == 0o644
    assert [path.name for path in folder.iterdir()] == ["stop"]


@pytest.mark.parametrize(("left_s", "told_s"), [(57.9, 57), (1e9, 60), (-5.0, 0)])
def test_nobody_is_promised_more_than_there_is(tmp_path: Path, folder: Path, left_s: float, told_s: int) -> None:
    assert tell(tmp_path, left_s) == ""
    assert f"notice_s={told_s}\n" in (folder / "stop").read_text()


def test_an_agent_that_starts_again_writes_nothing(tmp_path: Path, folder: Path) -> None:
    tell(tmp_path)
    before = (folder / "stop").stat()
    assert tell(tmp_path, 3.0) == ""
    assert (folder / "stop").stat() == before


@pytest.mark.parametrize("uid", ["gone", "..", "", "a/b", "x" * 300])
def test_without_its_directory_there_is_nothing_to_tell(tmp_path: Path, folder: Path, uid: str) -> None:
    assert tell(tmp_path, uid=uid) == ""


@pytest.mark.parametrize("name", ["stop", ".stop.coda"])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path.symlink_to(path.parents[4] / "secret"), id="a link to a file of the host"),
        pytest.param(lambda path: path.symlink_to(path), id="a link to itself"),
        pytest.param(lambda path: os.mkfifo(path), id="a pipe that nobody reads"),
        pytest.param(lambda path: path.write_bytes(b"x" * 100_000), id="a huge file"),
        pytest.param(lambda path: os.link(path.parents[4] / "secret", path), id="another name of a file of the host"),
        pytest.param(lambda path: path.write_text("id=plan-6\n"), id="an earlier announcement"),
    ],
)
def test_what_is_in_its_place_goes_and_is_not_followed(
    tmp_path: Path, folder: Path, make: Callable[[Path], object], name: str
) -> None:
    secret = tmp_path / "pods" / "secret"
    secret.write_text("untouched")
    make(folder / name)
    assert tell(tmp_path) == ""
    assert (folder / "stop").read_text() == TEXT
    assert not (folder / "stop").is_symlink()
    assert secret.read_text() == "untouched"


@pytest.mark.parametrize("name", ["stop", ".stop.coda"])
def test_a_folder_in_its_place_is_told_of(tmp_path: Path, folder: Path, name: str) -> None:
    (folder / name / "full").mkdir(parents=True)
    assert tell(tmp_path).startswith(f"pod {UID} is not told that it is to stop: ")


def test_a_link_on_the_way_is_not_followed(tmp_path: Path, folder: Path) -> None:
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert tell(tmp_path) != ""
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_no_descriptor_stays_open(tmp_path: Path, folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  it counts itself, both times
    (folder / ".stop.coda").mkdir()
    for _ in range(20):
        tell(tmp_path)
        tell(tmp_path, uid="gone")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
