"""The first file system of the virtual machine: busybox, kernel modules and an init script, as one cpio archive.

In Debian's kernel every driver of a virtual device is a module, so nothing could be read from the host without these.
Pure: names and bytes in, bytes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from coda_lab.host.errors import LabFailure

_DIRECTORY, _FILE = 0o040755, 0o100755
_DEPENDS = b"\0depends="


def cpio(content_by_path: Mapping[str, bytes]) -> bytes:
    """A cpio archive (newc) with these files, all executable, and their folders. Paths are relative.

    Source: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
    """
    folders = {str(parent) for path in content_by_path for parent in Path(path).parents} - {"."}
    entries = [(path, _DIRECTORY, b"") for path in sorted(folders)]
    entries += [(path, _FILE, content) for path, content in content_by_path.items()]
    entries.append(("TRAILER!!!", 0, b""))
    return b"".join(_entry(number, *entry) for number, entry in enumerate(entries, 1))


def modules_in_order(folder: Path, wanted: Iterable[str]) -> tuple[Path, ...]:
    """The files of the `wanted` modules below `folder` and of all modules they depend on, dependencies first.

    Raises LabFailure when one is missing.
    """
    path_by_name = {path.name.partition(".")[0].replace("-", "_"): path for path in folder.rglob("*.ko")}
    ordered: dict[str, Path] = {}

    def add(name: str) -> None:
        if name in ordered:
            return
        if name not in path_by_name:
            raise LabFailure(f"The kernel in {folder} has no module {name}.")
        for needed in _depends(path_by_name[name].read_bytes()):
            add(needed)
        ordered[name] = path_by_name[name]

    for name in wanted:
        add(name)
    return tuple(ordered.values())


def _depends(module: bytes) -> tuple[str, ...]:
    start = module.find(_DEPENDS)
    names = module[start + len(_DEPENDS) :].partition(b"\0")[0].decode() if start >= 0 else ""
    return tuple(name.replace("-", "_") for name in names.split(",") if name)


def _entry(number: int, path: str, mode: int, content: bytes) -> bytes:
    name = path.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name) + _padded(content)


def _padded(part: bytes) -> bytes:
    return part + b"\0" * (-len(part) % 4)
