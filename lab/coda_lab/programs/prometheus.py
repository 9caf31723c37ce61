"""Prometheus and promtool, for tests of alerts and dashboards: Debian's package, unpacked into the user's cache.

It is not installed, since Debian would start it as a service. `python -m coda_lab.programs.prometheus` (`make
prometheus`) fetches it and prints its folder. Remove that folder for a newer one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from coda.errors import CodaError
from coda_lab.host.errors import LabFailure
from coda_lab.host.file_lock import locked
from coda_lab.host.paths import Settings

_PACKAGE = "prometheus"
_PROGRAMS = ("prometheus", "promtool")


def find(settings: Settings) -> Path | None:
    """The folder with both programs: one of the PATH, else the cache's; None if neither has them."""
    found = {shutil.which(name, path=settings.environ.get("PATH")) for name in _PROGRAMS}
    folders = {Path(path).parent if path else None for path in found}
    if len(folders) == 1 and (folder := folders.pop()) is not None:
        return folder
    kept = settings.cache / _PACKAGE
    return kept if all((kept / name).exists() for name in _PROGRAMS) else None


def ensure(settings: Settings) -> Path:
    """The folder with both programs, fetched first if there is none. Raises LabFailure with one sentence."""
    with locked(settings.cache / f"{_PACKAGE}.lock", wait=True):
        return find(settings) or _fetch(settings.cache / _PACKAGE, settings)


def _fetch(folder: Path, settings: Settings) -> Path:
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="coda-prometheus-") as name:
        scratch = Path(name)
        scratch.chmod(0o755)  # apt fetches as a user of its own
        if not _runs(["apt-get", "download", "-qq", _PACKAGE], scratch, settings):
            _runs(["apt-get", "update", "-qq"], scratch, settings)  # a new machine has no lists; only root gets them
            _runs(["apt-get", "download", "-qq", _PACKAGE], scratch, settings)
        for package in scratch.glob("*.deb"):
            _runs(["dpkg-deb", "-x", str(package), str(scratch / "unpacked")], scratch, settings)
        for program in _PROGRAMS:
            if not (scratch / "unpacked/usr/bin" / program).exists():
                raise LabFailure(f"{program} could not be fetched as Debian's package {_PACKAGE} (apt-get download).")
            shutil.copy2(scratch / "unpacked/usr/bin" / program, unfinished / program)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return folder


def _runs(command: list[str], folder: Path, settings: Settings) -> bool:
    try:
        ended = subprocess.run(command, cwd=folder, env=dict(settings.environ), capture_output=True, check=False)
    except FileNotFoundError:  # no Debian
        return False
    return ended.returncode == 0


def main() -> int:
    """Fetch it and print where it is; 1 with one sentence on failure."""
    try:
        print(ensure(Settings.from_environ()))  # noqa: T201 - this is a command
    except CodaError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
