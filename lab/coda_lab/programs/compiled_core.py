"""The compiled core: a wheel built once per content of its sources, unpacked to a folder for PYTHONPATH.

`python -m coda_lab.programs.compiled_core` (`make native`) builds it and prints the folder. The folder has only the
packages `coda` and `coda_sim`.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from coda.errors import CodaError
from coda_lab.host.errors import LabFailure, failure_from_os_error, last_lines
from coda_lab.host.file_lock import locked
from coda_lab.host.paths import Settings, sources

PACKAGES = ("coda", "coda_sim")
NO_COMPILER = 3  # exit code


class NoCompiler(LabFailure):
    """This machine cannot compile C for this Python."""


def ensure(settings: Settings) -> Path:
    """The folder for PYTHONPATH, built first if it is not there. If another process builds it, this one waits.

    Raises LabFailure with one sentence; NoCompiler if the machine has no compiler."""
    root = sources()
    folder = settings.cache / "native" / cache_key(root, settings.environ)
    if folder.exists():
        return folder
    _check_compiler(settings.environ)
    try:
        with locked(folder.with_name(f"{folder.name}.lock"), wait=True):
            if not folder.exists():
                _build_into(folder, root, settings)
    except OSError as error:
        raise failure_from_os_error(error, f"keeping the compiled core in {folder}") from error
    return folder


def cache_key(root: Path, environ: Mapping[str, str]) -> str:
    """`<Python>-mypy<version>-O<level>-<hash of the sources and of the build settings>`."""
    hatch = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]
    digest = hashlib.sha256(repr(hatch).encode())
    packaged = (path for package in PACKAGES for path in (root / "core" / package).rglob("*"))
    for path in (root / "hatch_build.py", *sorted(packaged)):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode() + path.read_bytes())
    level = environ.get("MYPYC_OPT_LEVEL", "3")
    return f"{sysconfig.get_config_var('SOABI')}-mypy{metadata.version('mypy')}-O{level}-{digest.hexdigest()[:12]}"


def _check_compiler(environ: Mapping[str, str]) -> None:
    compiler = shlex.split(environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler, path=environ.get("PATH")) is None:
        raise NoCompiler(
            f"Compiling the core needs a C compiler, and there is no {compiler}: pure Python does the same."
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise NoCompiler(f"Compiling the core needs Python's headers, and there is no {header}: install python3-dev.")


def _build_into(folder: Path, root: Path, settings: Settings) -> None:
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    log = folder.with_name(f"build-{folder.name}.log")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    print("Compiling the core: once per content of its sources, 2 to 4 minutes.", file=sys.stderr)  # noqa: T201
    try:
        _unpack(_wheel(root, unfinished, log, settings.environ), unfinished / "packages")
        shutil.rmtree(folder, ignore_errors=True)
        (unfinished / "packages").rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _wheel(root: Path, folder: Path, log: Path, environ: Mapping[str, str]) -> Path:
    with log.open("wb") as sink:
        ended = subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(folder), str(root)],
            stdout=sink,
            stderr=subprocess.STDOUT,
            check=False,
            env={**environ, "HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
    if ended.returncode != 0:
        raise LabFailure("Compiling the core failed.", log=log, last_lines=last_lines(log))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _unpack(wheel: Path, folder: Path) -> None:
    kept = (*(f"{package}/" for package in PACKAGES),)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(kept) or "__mypyc." in name]
        archive.extractall(folder, names)


def main() -> int:
    """Build it and print where it is; 1 with one sentence on failure, 3 without a compiler, 130 when interrupted."""
    try:
        folder = ensure(Settings.from_environ())
    except NoCompiler as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is a command
        return NO_COMPILER
    except CodaError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        print("Interrupted; run it again to start over.", file=sys.stderr)  # noqa: T201
        return 130
    if sys.stdout.isatty():
        print(f"Run with it: PYTHONPATH={folder} coda simulate", file=sys.stderr)  # noqa: T201
    print(folder)  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
