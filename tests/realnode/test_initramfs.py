"""The machine's first file system: an archive as the kernel reads it, modules in the order they need each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda_lab.host.errors import LabFailure
from coda_lab.realnode.initramfs import cpio, modules_in_order

names = st.text("abcxyz", min_size=1, max_size=6)


def read_cpio(archive: bytes) -> dict[str, bytes]:
    """An independent reader, after the kernel's buffer-format.rst: files and folders by name."""
    found: dict[str, bytes] = {}
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        size, name_size = (int(archive[at + where : at + where + 8], 16) for where in (54, 94))
        name = archive[at + 110 : at + 110 + name_size - 1].decode()
        content_at = at + 110 + name_size + (-(110 + name_size) % 4)
        if name == "TRAILER!!!":
            return found
        found[name] = archive[content_at : content_at + size]
        at = content_at + size + (-size % 4)


@given(st.dictionaries(st.tuples(st.just("d"), names).map("/".join), st.binary(max_size=50), max_size=8))
def test_every_file_is_read_back_as_it_was_after_its_folder(content_by_path: dict[str, bytes]) -> None:
    read = read_cpio(cpio(content_by_path))
    folders = {"d"} if content_by_path else set()
    assert read == content_by_path | dict.fromkeys(folders, b"")
    assert list(read)[: len(folders)] == sorted(folders)


def module(folder: Path, name: str, *needs: str) -> Path:
    path = folder / f"{name}.ko"
    path.write_bytes(b"\x7fELF\0license=GPL\0depends=" + ",".join(needs).encode() + b"\0retpoline=Y\0")
    return path


def test_modules_come_after_what_they_need_and_once(tmp_path: Path) -> None:
    ring, core = module(tmp_path, "virtio_ring"), module(tmp_path, "virtio", "virtio_ring")
    net, rng = module(tmp_path, "virtio_net", "virtio", "virtio_ring"), module(tmp_path, "virtio-rng", "virtio")
    assert modules_in_order(tmp_path, ["virtio_net", "virtio_rng"]) == (ring, core, net, rng)


def test_a_module_that_the_kernel_lacks_is_one_sentence(tmp_path: Path) -> None:
    module(tmp_path, "9p", "9pnet")
    with pytest.raises(LabFailure, match="has no module 9pnet"):
        modules_in_order(tmp_path, ["9p"])
