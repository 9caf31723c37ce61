"""The framework's files on the node: copied from the agent's image, since containers of other images mount them.

Each version lies in a folder that is named by what is in it. It appears as a whole or not at all, and never changes, so
a container that has it mounted keeps it over an upgrade of the agent."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from coda.errors import Outage

COMING: Final = ".coming"
BROKEN: Final = ".broken"
_MOST_FILES: Final = 1000


def version_of(folder: Path) -> str:
    """Return the name of what is in `folder`: of every path, content and right to execute. Raises OSError."""
    digest = hashlib.sha256()
    for path in _files_in(folder):
        executable = bool(path.stat().st_mode & 0o100)
        for part in (str(path.relative_to(folder)).encode(), path.read_bytes(), bytes([executable])):
            digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()[:16]


def install(bundle: Path, folder: Path) -> Path:
    """Copy `bundle` into `folder` under its version's name, unless it is there; return where it is.

    Safe to repeat, and to be killed at any moment. On the disk when it returns. Raises Outage with one sentence: there
    is no bundle, or no space; then nothing of it is left behind."""
    if not (bundle / "python").is_dir() or not (bundle / "lib").is_dir():
        raise Outage(f"GPUs cannot be shared: there are no files for jobs in {bundle} (make framework makes them)")
    coming = folder / COMING
    try:
        version = version_of(bundle)
        final = folder / version
        if final.is_dir() and version_of(final) == version:
            return final
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        shutil.rmtree(coming, ignore_errors=True)
        _copy(bundle, coming)
        if version_of(coming) != version:
            raise Outage(f"the copy of {bundle} in {folder} is not what was copied")
        if final.exists():  # somebody changed it
            shutil.rmtree(folder / BROKEN, ignore_errors=True)
            final.rename(folder / BROKEN)
        coming.rename(final)
        _sync(folder)
    except OSError as error:
        shutil.rmtree(coming, ignore_errors=True)
        what = error.strerror or str(error)
        raise Outage(f"GPUs cannot be shared: the files for jobs cannot be copied to {folder} ({what})") from error
    return final


def remove_others(folder: Path, kept: Path) -> None:
    """Remove every version but `kept`, and what a killed copy left. Only for when no container has one mounted."""
    try:
        others = [path for path in folder.iterdir() if path != kept]
    except OSError:
        return
    for path in others:
        shutil.rmtree(path, ignore_errors=True)


def _files_in(folder: Path) -> Iterator[Path]:
    """In order. Raises OSError: more than a bundle can have."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if len(found) > _MOST_FILES:
        raise OSError(f"more than {_MOST_FILES} files in {folder}")
    return iter(found)


def _copy(bundle: Path, target: Path) -> None:
    """Readable by all: containers run as anyone."""
    target.mkdir(mode=0o755)
    folders = {target}
    for path in _files_in(bundle):
        copy = target / path.relative_to(bundle)
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        folders |= {parent for parent in copy.parents if parent.is_relative_to(target)}
        with path.open("rb") as source, copy.open("wb") as written:
            shutil.copyfileobj(source, written)
            written.flush()
            os.fsync(written.fileno())
        copy.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    for made in folders:
        made.chmod(0o755)  # whatever the umask
        _sync(made)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
