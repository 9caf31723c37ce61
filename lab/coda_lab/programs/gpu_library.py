"""`libcodagpu.so`, built for machines of users: the same bytes wherever it is built, and for glibc 2.17 and newer.

The compiler is PyPI's `ziglang`, which brings the headers and symbol versions of every glibc. `python -m
coda_lab.programs.gpu_library FOLDER` (`make framework`) writes the folder that an image needs: `lib/` per processor and
`python/`."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from coda.errors import CodaError
from coda_lab.host.errors import LabFailure, failure_from_os_error
from coda_lab.host.file_lock import locked
from coda_lab.host.paths import Settings, sources

NAME = "libcodagpu.so"
PROCESSORS = ("x86_64", "aarch64")
GLIBC = "2.17"
"""Of CentOS 7 and of every image with a wheel tagged manylinux2014."""

_FLAGS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-sanitize=undefined",
    "-ftls-model=initial-exec",  # the other ones need a name of glibc's loader
    "-Wall",
    "-Wextra",
    "-s",
    f"-Wl,-soname,{NAME}",
    "-Wl,--build-id=none",
)


def source_folder() -> Path:
    """The sources in C; only a checkout has them."""
    return sources() / "framework" / "library"


def python_folder() -> Path:
    """The folder that goes in front of a job's PYTHONPATH."""
    return sources() / "framework" / "python"


def ensure(settings: Settings, processor: str = "") -> Path:
    """The library for that processor (default: this one's), built if this version is not in the cache (15 s).

    Raises LabFailure with one sentence."""
    processor = processor or platform.machine()
    library = settings.cache / "gpu-library" / _key() / processor / NAME
    if library.exists():
        return library
    try:
        with locked(library.parent.with_name(f"{processor}.lock"), wait=True):
            if not library.exists():
                with tempfile.TemporaryDirectory(dir=library.parent.parent) as name:
                    built = build(Path(name), processor, zig_cache=settings.cache / "zig")
                    library.parent.mkdir(exist_ok=True)
                    built.replace(library)
    except OSError as error:
        raise failure_from_os_error(error, f"keeping {NAME} in {library.parent}") from error
    return library


def build(folder: Path, processor: str, *, zig_cache: Path) -> Path:
    """Compile into `folder`. The same sources and compiler give the same bytes, in any folder. Raises LabFailure."""
    library = folder / NAME
    units = sorted(path.name for path in source_folder().glob("*.c"))  # relative: no path gets into the result
    target = f"{processor}-linux-gnu.{GLIBC}"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *_FLAGS, *units, "-o", str(library)]
    environ = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(zig_cache), "ZIG_LOCAL_CACHE_DIR": str(zig_cache)}
    ended = subprocess.run(command, cwd=source_folder(), env=environ, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise LabFailure(f"{NAME} for {processor} could not be built: {ended.stderr.strip()[:2000]}")
    return library


def write_bundle(folder: Path, settings: Settings) -> None:
    """Write what a job's container gets: `lib/<processor>/libcodagpu.so` and `python/`."""
    for processor in PROCESSORS:
        target = folder / "lib" / processor / NAME
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ensure(settings, processor), target)
        target.chmod(0o755)
    shutil.rmtree(folder / "python", ignore_errors=True)
    shutil.copytree(python_folder(), folder / "python", ignore=shutil.ignore_patterns("__pycache__", "*.toml"))


def _key() -> str:
    digest = hashlib.sha256(" ".join((metadata.version("ziglang"), GLIBC, *_FLAGS)).encode())
    for path in sorted(source_folder().glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def main() -> int:
    """Write the bundle into the folder of the command line; 1 with one sentence on failure."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist/framework")
    try:
        write_bundle(folder, Settings.from_environ())
    except (CodaError, metadata.PackageNotFoundError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is a command
        return 1
    print(folder)  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
