"""What torch's libraries need of CUDA's and is not part of the runtime: stubs in which every function returns 0.

The names come from torch's libraries: those that they need, and their undefined symbols with versions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coda_lab.host.errors import LabFailure

_OURS = ("libtorch", "libc10", "libcaffe2")
_CUDA_NAME = re.compile(r"(cu[a-zA-Z]|nccl|nvrtc|nvshmem|nvtx|nvJit|__cuda)")
_PREFIXES = {  # what the functions of a library begin with
    "cusparseLt": "cusparseLt",
    "cusparse": "cusparse",
    "cufft": "cufft",
    "cufile": "cuFile",
    "nccl": "nccl",
    "cublasLt": "cublasLt",
    "cublas": "cublas",
    "cudnn": "cudnn",
    "nvrtc": "nvrtc",
    "nvshmem_host": "nvshmem",
    "cusolver": "cusolver",
    "curand": "curand",
    "cupti": "cupti",
    "nvToolsExt": "nvtx",
    "nvJitLink": "nvJitLink",
}
_DRIVER = "libcuda.so.1"
_DRIVER_OF_OUR_OWN = ("cuDevicePrimaryCtxGetState", "cuPointerGetAttribute", "cuCtxGetCurrent")
_DRIVER_SOURCE = """
int cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { (void)d; *flags = 0; *active = 1; return 0; }
int cuPointerGetAttribute(void **value, int a, void *p) { (void)a; (void)p; *value = (void *)8; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)8; return 0; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a torch needs: libraries by name, and undefined symbols with their versions ("": none)."""

    libraries: frozenset[str]
    version_by_symbol: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stub:
    """One library to build: its source, and its symbols by version."""

    name: str
    source: str
    symbols_by_version: Mapping[str, tuple[str, ...]]


def needs_of(folder: Path) -> Needs:
    """Read the libraries of torch in `folder`. Raises LabFailure without binutils."""
    libraries: set[str] = set()
    symbols: dict[str, str] = {}
    for library in sorted(folder.glob("lib*.so*")):
        if not library.name.startswith(_OURS):
            continue
        libraries.update(re.findall(r"NEEDED.*\[(.*)\]", _said("readelf", "-d", str(library))))
        for line in _said("nm", "-D", "--undefined-only", str(library)).splitlines():
            name, _, version = line.split()[-1].partition("@")
            if _CUDA_NAME.match(name):
                symbols[name] = version.strip("@")
    return Needs(libraries=frozenset(libraries), version_by_symbol=symbols)


def runtime_of(needs: Needs) -> str:
    """The file name of the CUDA runtime that this torch needs."""
    (name,) = (name for name in needs.libraries if name.startswith("libcudart"))
    return name


def runtime_symbols(needs: Needs) -> Mapping[str, str]:
    """The symbols that the runtime must have, with their versions."""
    return {name: version for name, version in needs.version_by_symbol.items() if version.startswith("libcudart")}


def stubs_for(needs: Needs, present: Iterable[str]) -> tuple[Stub, ...]:
    """The stubs of the libraries that are not `present`, and of the driver."""
    wanted = needs.libraries - set(present)
    names = [
        name
        for name in sorted(wanted)
        if re.match(r"lib(cu|nv|nccl)", name) and not name.startswith("libcudart") and name != _DRIVER
    ]
    by_library: dict[str, list[str]] = {name: [] for name in names}
    for symbol in sorted(needs.version_by_symbol):
        library = _library_of(symbol, names)
        if library is not None:
            by_library[library].append(symbol)
    return (*(_stub(name, symbols, needs) for name, symbols in by_library.items()), _driver_stub(needs))


def _library_of(symbol: str, names: Iterable[str]) -> str | None:
    best, longest = None, 0
    for name in names:
        found = re.match(r"lib([A-Za-z_]+?)(-|\.so|\d)", name)
        prefix = _PREFIXES.get(found.group(1)) if found else None
        if prefix and symbol.startswith(prefix) and len(prefix) > longest:
            best, longest = name, len(prefix)
    return best


def _stub(name: str, symbols: Iterable[str], needs: Needs) -> Stub:
    by_version: dict[str, list[str]] = {}
    lines = ["int nothing_here;"]
    for symbol in symbols:
        is_variable = symbol.endswith("selected_device_transport")
        lines.append(f"int {symbol};" if is_variable else f"long {symbol}(void) {{ return 0; }}")
        version = needs.version_by_symbol[symbol]
        if version:
            by_version.setdefault(version, []).append(symbol)
    return Stub(
        name=name, source="\n".join(lines), symbols_by_version={key: tuple(some) for key, some in by_version.items()}
    )


def _driver_stub(needs: Needs) -> Stub:
    names = [
        name
        for name in sorted(needs.version_by_symbol)
        if re.match(r"cu[A-Z]", name) and not name.startswith("cuFile") and name not in _DRIVER_OF_OUR_OWN
    ]
    lines = [f"int {name}(void) {{ return 0; }}" for name in names]
    return Stub(name=_DRIVER, source="\n".join([_DRIVER_SOURCE, *lines]), symbols_by_version={})


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise LabFailure(f"make-believe CUDA needs {command[0]} (Debian: apt-get install binutils): {error}") from error
