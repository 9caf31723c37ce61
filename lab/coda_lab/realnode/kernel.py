"""Debian's kernel, kept in the user's cache: fetched through apt and unpacked, never installed on this machine.

Debian's, because it is signed, has all of cgroup v2, 9p and overlayfs, and every Debian machine can fetch it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coda_lab.host.errors import LabFailure
from coda_lab.host.file_lock import locked
from coda_lab.host.paths import Settings
from coda_lab.realnode.initramfs import modules_in_order
from coda_lab.spec import Tell

PACKAGE_BY_PROGRAM: Mapping[str, str] = {
    "qemu-system-x86_64": "qemu-system-x86",
    "runc": "runc",
    "busybox": "busybox-static",
    "gcc": "gcc",
    "mmdebstrap": "mmdebstrap",
    "fusermount3": "fuse3",
}
"""Debian's packages for the programs that are not built here."""

_META = "linux-image-amd64"  # the cloud kernel lacks 9p
_MODULES = (
    "virtio_pci",
    "virtio_net",
    "virtio_rng",
    "9p",
    "9pnet_virtio",
    "overlay",
    "veth",
    "bridge",
    "br_netfilter",
    "fuse",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel and the modules the machine needs, each after what it depends on."""

    image: Path
    modules: tuple[Path, ...]


def ensure(settings: Settings, tell: Tell) -> Kernel:
    """Return the kernel in the cache, fetched first if there is none: remove its folder for a newer one. Raises
    LabFailure.
    """
    folder = settings.cache / "node-kernel"
    with locked(folder.with_name("node-kernel.lock"), wait=True):
        if not set(_MODULES) <= {path.stem.replace("-", "_") for path in _modules_in(folder)}:
            _fetch(folder, settings, tell)
    return Kernel(image=folder / "vmlinuz", modules=_modules_in(folder))


def _modules_in(folder: Path) -> tuple[Path, ...]:
    """In the order in which they are loaded; none where no kernel was fetched yet."""
    order = folder / "order"
    return tuple(folder / name for name in order.read_text().split()) if order.exists() else ()


def install_packages(programs: Sequence[str], settings: Settings, tell: Tell) -> None:
    """Install the Debian packages of these programs. Raises LabFailure, also without root."""
    packages = sorted({PACKAGE_BY_PROGRAM[name] for name in programs})
    if os.geteuid() != 0:
        raise LabFailure(f"The real node needs Debian's packages {' '.join(packages)}: install them with apt-get.")
    tell(f"Installing {' '.join(packages)} with apt-get.")
    _apt(["update", "-qq"], settings)
    _apt(["install", "-qq", "-y", "--no-install-recommends", *packages], settings)


def _fetch(folder: Path, settings: Settings, tell: Tell) -> None:
    tell("Fetching Debian's kernel with apt-get: 70 MB, of which 15 MB are kept.")
    unfinished = folder.with_name("node-kernel.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="coda-kernel-") as name:
        scratch = Path(name)
        _apt(["download", "-qq", _newest_package(settings)], settings, folder=scratch)
        (package,) = scratch.glob("*.deb")
        _run(["dpkg-deb", "-x", str(package), str(scratch / "unpacked")], settings)
        (image,) = (scratch / "unpacked" / "boot").glob("vmlinuz-*")
        modules = modules_in_order(scratch / "unpacked" / "lib" / "modules", _MODULES)
        unfinished.mkdir(parents=True)
        for file in modules:
            shutil.copyfile(file, unfinished / file.name)
        (unfinished / "order").write_text("\n".join(file.name for file in modules))
        (unfinished / "version").write_text(package.name)
        shutil.copyfile(image, unfinished / "vmlinuz")
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def _newest_package(settings: Settings) -> str:
    for attempt in (1, 2):
        said = _run(["apt-cache", "depends", _META], settings, may_fail=True)
        found = re.search(r"Depends: (linux-image-\S+)", said)
        if found:
            return found[1]
        if attempt == 1 and os.geteuid() == 0:
            _apt(["update", "-qq"], settings)
    raise LabFailure(
        f"apt knows no package {_META}: the real node's kernel is Debian's (run `apt-get update` as root)."
    )


def _apt(arguments: Sequence[str], settings: Settings, folder: Path | None = None) -> None:
    environ = {**settings.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "-o", "DPkg::Lock::Timeout=300", *arguments], settings, folder=folder, environ=environ)


def _run(
    command: Sequence[str],
    settings: Settings,
    *,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
    may_fail: bool = False,
) -> str:
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=folder, env=dict(environ or settings.environ)
        )
    except FileNotFoundError:
        raise LabFailure(f"The real node needs a Debian machine: there is no {command[0]} here.") from None
    if ended.returncode != 0 and not may_fail:
        raise LabFailure(f"{' '.join(command)} failed: {ended.stderr.strip()[-300:]}")
    return ended.stdout
