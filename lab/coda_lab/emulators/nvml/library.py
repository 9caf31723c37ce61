"""Builds the emulated `libnvidia-ml.so.1` with gcc, once per version of its source, and puts it where pynvml looks.

pynvml loads one library per process, by its bare name. A started program finds ours by `environment_for`; this process
by `load_here`, which must come before the first `nvmlInit`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from coda_lab.emulators.nvml.state import STATE_VARIABLE
from coda_lab.host.errors import LabFailure

_SOURCE = Path(__file__).resolve().parent / "library_source"
_NAME = "libnvidia-ml.so.1"
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-Wl,-soname,{_NAME}", "-Wall", "-Wextra")


def build(cache: Path) -> Path:
    """The library's path beneath `cache`, built if this version is not there yet (about 1 s).

    Several may build at once: the last one's equal file wins. Raises LabFailure without gcc, or with its words."""
    sources = sorted(_SOURCE.glob("*.[ch]"))
    version = hashlib.sha256(b"\0".join([*(path.read_bytes() for path in sources), " ".join(_FLAGS).encode()]))
    library = cache / "nvml" / version.hexdigest()[:16] / _NAME
    if library.exists():
        return library
    compiler = shutil.which("gcc")
    if compiler is None:
        raise LabFailure("The emulated NVML needs gcc: install it (Debian: apt-get install gcc libc6-dev).")
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as workplace:
        fresh = Path(workplace) / _NAME
        units = [str(path) for path in sources if path.suffix == ".c"]
        command = [compiler, *_FLAGS, "-o", str(fresh), *units, "-lm", "-lpthread"]
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        if outcome.returncode:
            raise LabFailure(f"gcc could not build the emulated NVML: {outcome.stderr.strip()[:2000]}")
        fresh.replace(library)
    return library


def environment_for(library: Path, state: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The `environ` for a program whose pynvml must find `library`, answering from `state`."""
    paths = [str(library.parent), *filter(None, [environ.get("LD_LIBRARY_PATH")])]
    return {**environ, "LD_LIBRARY_PATH": os.pathsep.join(paths), STATE_VARIABLE: str(state)}


def load_here(library: Path) -> None:
    """Make this process's pynvml find `library`: a loaded library with this name is not searched again."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
