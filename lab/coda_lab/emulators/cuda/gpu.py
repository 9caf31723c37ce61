"""The make-believe runtime alone, for programs in C, and the file in which the GPUs live."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coda_lab.host.errors import LabFailure

SOURCE = Path(__file__).resolve().parent / "library_source"
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-w")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFile:
    """GPUs that all processes with the same file share. The file must not be there before.

    kernel_us: time of a kernel; host_bytes: pinned memory of one process, None: as much as it wants"""

    path: Path
    gpus: int = 1
    memory_bytes: int = 1 << 30
    kernel_us: int = 0
    host_bytes: int | None = None

    def environment(self) -> Mapping[str, str]:
        """The variables for a program that is to find these GPUs."""
        values = {
            "CODA_RIG_GPU": str(self.path),
            "CODA_RIG_GPUS": str(self.gpus),
            "CODA_RIG_GPU_BYTES": str(self.memory_bytes),
            "CODA_RIG_KERNEL_US": str(self.kernel_us),
        }
        return values if self.host_bytes is None else {**values, "CODA_RIG_HOST_BYTES": str(self.host_bytes)}


def source_key(more: Iterable[Path] = ()) -> str:
    """Changes with the sources of the runtime, and of `more`."""
    files = (*sorted(path for path in SOURCE.rglob("*") if path.is_file()), *more)
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]


def build_runtime(cache: Path) -> Path:
    """The folder with `libcudart.so` for programs in C, built if this version is not there (1 s). Raises LabFailure."""
    folder = cache / "cuda-runtime" / source_key()
    if not (folder / "libcudart.so").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as workplace:
            fresh = Path(workplace) / "libcudart.so"
            compiled(SOURCE.joinpath("runtime.c"), into=fresh, more=["-Wl,-soname,libcudart.so"])
            fresh.replace(folder / "libcudart.so")
    return folder


def compiled(*sources: Path, into: Path, more: Iterable[str] = ()) -> None:
    """Compile a shared library. Raises LabFailure without gcc, or with its words."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise LabFailure("Make-believe CUDA needs gcc: install it (Debian: apt-get install gcc libc6-dev).")
    command = [compiler, *_FLAGS, f"-I{SOURCE}", "-o", str(into), *map(str, sources), *more, "-lpthread"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise LabFailure(f"gcc could not build {into.name}: {ended.stderr.strip()[:2000]}")
