"""A real torch wheel over make-believe CUDA, in the user's cache: without CUDA's packages, 1.3 GB instead of 4.

`python -m coda_lab.emulators.cuda [VERSION ...]` (`make torch`) fetches and prepares them. Tests use
what is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coda_lab.emulators.cuda.gpu import SOURCE, GpuFile, compiled, source_key
from coda_lab.emulators.cuda.stubs import Stub, needs_of, runtime_of, runtime_symbols, stubs_for
from coda_lab.host.errors import LabFailure, failure_from_os_error
from coda_lab.host.file_lock import locked
from coda_lab.host.paths import Settings

TORCH_VERSIONS: Mapping[str, tuple[str, ...]] = {  # with the package that has the headers of its CUDA
    "2.15.0": ("nvidia-cuda-runtime==13.2.86",),
    "2.11.0": ("nvidia-cuda-runtime==13.0.96",),
    "2.5.1": ("nvidia-cuda-runtime-cu12==12.4.127",),
}
"""The newest first: it is the one that short tests use."""

_PURE = (
    "filelock==4.2.12",
    "typing-extensions==4.16.0",
    "sympy==1.14.0",
    "mpmath==1.4.1",
    "networkx==3.6.1",
    "jinja2==3.1.6",
    "markupsafe==3.0.4",
    "fsspec==2026.9.0",
    "numpy==2.4.6",
    "setuptools==84.2.1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRig:
    """One torch that is ready: `site` goes into PYTHONPATH."""

    version: str
    site: Path

    def environment(self, gpus: GpuFile, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables for a script that imports torch and finds `gpus`."""
        return {
            "PATH": environ["PATH"],
            "PYTHONPATH": str(self.site),
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
            **gpus.environment(),
        }


def find_torch(settings: Settings, version: str) -> TorchRig | None:
    """That torch, prepared for this source of the runtime; None if it was not fetched. Raises LabFailure."""
    site = _folder(settings, version)
    if not (site / "torch").is_dir():
        return None
    marker = site / f".rig-{source_key(_builders())}"
    if not marker.exists():
        with locked(site.with_name(f"{site.name}.lock"), wait=True):
            if not marker.exists():
                _prepare(site)
                marker.touch()
    return TorchRig(version=version, site=site)


def fetch_torch(settings: Settings, version: str) -> TorchRig:
    """The same, fetched first if it is not there. Raises LabFailure."""
    site = _folder(settings, version)
    try:
        site.parent.mkdir(parents=True, exist_ok=True)
        with locked(site.with_name(f"{site.name}.lock"), wait=True):
            if not (site / "torch").is_dir():
                _fetch(site, version)
    except OSError as error:
        raise failure_from_os_error(error, f"keeping torch in {site}") from error
    found = find_torch(settings, version)
    assert found is not None
    return found


def _folder(settings: Settings, version: str) -> Path:
    return settings.cache / "torch" / f"{version}-cp{sys.version_info.major}{sys.version_info.minor}"


def _builders() -> tuple[Path, Path]:
    here = Path(__file__).resolve()
    return here, here.with_name("stubs.py")


def _fetch(site: Path, version: str) -> None:
    unfinished = site.with_name(f"{site.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    print(f"Fetching torch {version}: 1.3 GB on the disk.", file=sys.stderr)  # noqa: T201
    packages = [f"torch=={version}", *TORCH_VERSIONS.get(version, ()), *_PURE]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    ended = subprocess.run([*command, "--no-compile", "--target", str(unfinished), *packages], check=False)
    if ended.returncode:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise LabFailure(f"torch {version} could not be fetched: pip ended with {ended.returncode}.")
    unfinished.rename(site)


def _prepare(site: Path) -> None:
    """Put the runtime and the stubs where torch's libraries look: beside them, and in NVIDIA's folder."""
    libraries = site / "torch" / "lib"
    made = libraries / ".rig"
    before = made.read_text().split() if made.exists() else []
    needs = needs_of(libraries)
    present = {path.name for path in libraries.iterdir()} - set(before)
    stubs = stubs_for(needs, present)
    runtime = runtime_of(needs)
    with tempfile.TemporaryDirectory(dir=site) as name:
        workplace = Path(name)
        for stub in stubs:
            _build_stub(stub, workplace)
        _build_runtime(site, runtime, runtime_symbols(needs), workplace)
        made.write_text("\n".join([*(stub.name for stub in stubs), runtime]))
        for original in site.glob(f"nvidia/*/lib/{runtime}"):
            shutil.copy2(workplace / runtime, original)
        for built in [*(stub.name for stub in stubs), runtime]:
            (workplace / built).replace(libraries / built)


def _build_stub(stub: Stub, workplace: Path) -> None:
    source = workplace / f"{stub.name}.c"
    source.write_text(stub.source)
    versions = _version_script(workplace / f"{stub.name}.map", stub.symbols_by_version)
    more = ["-fno-builtin", f"-Wl,-soname,{stub.name}", *versions]
    compiled(source, into=workplace / stub.name, more=more)


def _version_script(path: Path, symbols_by_version: Mapping[str, Sequence[str]]) -> list[str]:
    if not symbols_by_version:
        return []
    path.write_text(
        "".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in symbols_by_version.items())
    )
    return [f"-Wl,--version-script={path}"]


def _build_runtime(site: Path, name: str, version_by_symbol: Mapping[str, str], workplace: Path) -> None:
    properties = next((one for one in version_by_symbol if one.startswith("cudaGetDeviceProperties")), None)
    headers = next(iter(site.glob("nvidia/*/include/driver_types.h")), None)
    if properties is None or headers is None:
        raise LabFailure(f"{site} has no headers of CUDA's runtime: remove it and run `make torch`.")
    number = re.search(r"CUDART_VERSION\s+(\d+)", headers.with_name("cuda_runtime_api.h").read_text())
    defined = {
        symbol
        for source in ("runtime.c", "described.c")
        for symbol in re.findall(r"\b((?:__)?cuda[A-Z]\w*)\(", (SOURCE / source).read_text())
    } | {properties}
    rest = workplace / "rest.c"
    others = sorted(symbol for symbol in version_by_symbol if symbol not in defined)
    rest.write_text("".join(f"int {symbol}(void) {{ return 0; }}\n" for symbol in others))
    versions = dict.fromkeys(sorted(set(version_by_symbol.values())), ("*",))
    compiled(
        SOURCE / "runtime.c",
        SOURCE / "described.c",
        rest,
        into=workplace / name,
        more=[
            f"-I{headers.parent}",
            f"-DRIG_PROPERTIES={properties}",
            f"-DRIG_VERSION={number.group(1) if number else 12000}",
            f"-Wl,-soname,{name}",
            *_version_script(workplace / "runtime.map", versions),
        ],
    )
