"""The files on the node: there as a whole or not at all, whatever happens to the copy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coda.errors import Outage
from coda_agent.seats.framework import install, remove_others, version_of
from tests.rigs import need


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle", b"\x7fELF" + bytes(50_000))


def make_bundle(folder: Path, library: bytes) -> Path:
    for path, content in {"lib/x86_64/libcodagpu.so": library, "python/coda_torch/__init__.py": b"x = 1\n"}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    (folder / "lib/x86_64/libcodagpu.so").chmod(0o755)
    return folder


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """16 KiB."""
    need(os.geteuid() == 0, "root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], capture_output=True, check=False
    )
    need(mounted.returncode == 0, "mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_every_version_has_a_folder_of_its_own_that_anyone_may_read(bundle: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        first = install(bundle, tmp_path / "node")
    finally:
        os.umask(before)
    assert version_of(first) == version_of(bundle) == first.name
    assert {path.stat().st_mode & 0o777 for path in first.rglob("*") if path.is_dir()} == {0o755}
    assert (first / "lib/x86_64/libcodagpu.so").stat().st_mode & 0o777 == 0o755
    assert (first / "python/coda_torch/__init__.py").stat().st_mode & 0o777 == 0o644
    kept = (first / "lib/x86_64/libcodagpu.so").stat().st_ino
    assert install(bundle, tmp_path / "node") == first  # nothing is written again
    assert (first / "lib/x86_64/libcodagpu.so").stat().st_ino == kept

    second = install(make_bundle(tmp_path / "newer", b"newer"), tmp_path / "node")
    assert second != first
    assert first.is_dir()  # a container may have it mounted
    remove_others(tmp_path / "node", second)
    assert [path.name for path in (tmp_path / "node").iterdir()] == [second.name]


def test_what_somebody_changed_is_replaced(bundle: Path, tmp_path: Path) -> None:
    first = install(bundle, tmp_path / "node")
    (first / "python/coda_torch/__init__.py").write_text("import evil\n")
    assert version_of(install(bundle, tmp_path / "node")) == first.name


def test_a_full_disk_is_said_in_one_sentence_and_leaves_nothing(bundle: Path, tiny_disk: Path) -> None:
    with pytest.raises(Outage) as refused:
        install(bundle, tiny_disk / "node")
    assert str(refused.value) == (
        f"GPUs cannot be shared: the files for jobs cannot be copied to {tiny_disk}/node (No space left on device)"
    )
    assert list((tiny_disk / "node").iterdir()) == []
    (bundle / "lib/x86_64/libcodagpu.so").write_bytes(b"small")
    assert version_of(install(bundle, tiny_disk / "node")) == version_of(bundle)


def test_without_a_bundle_it_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(Outage, match=r"there are no files for jobs in .*\(make framework makes them\)"):
        install(tmp_path / "nothing", tmp_path / "node")


KILLED = """
import os, signal, sys
from pathlib import Path
from coda_agent.seats.framework import install, version_of

bundle, node = Path(sys.argv[1]), Path(sys.argv[2])
left = 0
def count(event, _args):
    global left
    if event in ("open", "os.mkdir", "os.rename", "os.chmod", "shutil.rmtree"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
for moment in range(1, 1000):
    if (child := os.fork()) == 0:
        left = moment
        install(bundle, node)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = list(node.iterdir()) if node.is_dir() else []
    whole = [path for path in found if not path.name.startswith(".")]
    assert [version_of(path) for path in whole] == [path.name for path in whole], moment
    if status == 0:
        break
    assert os.WIFSIGNALED(status), status
print(moment)
"""


def test_killed_at_any_moment_it_leaves_a_whole_version_or_none(bundle: Path, tmp_path: Path) -> None:
    """Each call that writes or opens something is the last one once. One process for all: imports take long."""
    node = tmp_path / "node"
    command = [sys.executable, "-c", KILLED, str(bundle), str(node)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 10
    assert [path.name for path in node.iterdir()] == [version_of(bundle)]
