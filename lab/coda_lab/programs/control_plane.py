"""The programs of the control plane. Ready-made ones are used if they are new enough; the rest is built once.

`python -m coda_lab.programs.control_plane` (`make kube`) does that and prints where they are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from coda.errors import CodaError
from coda_lab.host.errors import LabFailure
from coda_lab.host.paths import Settings, kube_module
from coda_lab.programs.cache import built, key_of
from coda_lab.programs.go_build import BuildProgress, Recipe, kubernetes_version
from coda_lab.programs.go_toolchain import version_from_text
from coda_lab.programs.progress import BuildDisplay

PARTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")

_OLDEST: Mapping[str, tuple[int, ...]] = dict.fromkeys(PARTS, (1, 36)) | {
    "etcd": (3, 5, 13)  # below that it has no progress notifications
}
_VERSION_ARGUMENTS: Mapping[str, tuple[str, ...]] = dict.fromkeys(PARTS, ("--version",)) | {
    "kubectl": ("version", "--client")
}
_SHIM = '#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/kube" kubectl "$@"\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """How to start each part, and a kubectl for people. `notes` say which programs were found and are too old."""

    argv_by_part: Mapping[str, tuple[str, ...]]
    kubectl: Path
    notes: tuple[str, ...] = ()


def ensure(settings: Settings, tell: Callable[[BuildProgress], None]) -> Binaries:
    """All five parts; those that are missing are built. Raises LabFailure with one sentence."""
    if sys.platform != "linux":
        raise LabFailure("The local control plane needs Linux.")
    ready_made, notes = _ready_made(settings.ready_made, dict(settings.environ))
    argv_by_part: dict[str, tuple[str, ...]] = {part: (str(path),) for part, path in ready_made.items()}
    if set(argv_by_part) != set(PARTS):
        folder = built(_recipe(), cache_key(kube_module()), settings, tell, finish=_add_kubectl)
        argv_by_part = {part: (str(folder / "kube"), part) for part in PARTS} | argv_by_part
    kubectl = ready_made.get("kubectl") or Path(argv_by_part["kubectl"][0]).with_name("kubectl")
    return Binaries(argv_by_part=argv_by_part, kubectl=kubectl, notes=notes)


def ensure_shown(settings: Settings, console: Console | None = None) -> Binaries:
    """Like `ensure`, and show the build on the console; None: on stderr."""
    with BuildDisplay(_recipe(), console) as display:
        return ensure(settings, display.show)


def cache_key(module: Path) -> str:
    """`<Kubernetes version>-<hash of the files that the program is built from>`."""
    return key_of(kubernetes_version(module), (module / name for name in ("go.mod", "go.sum", "main.go")))


def _ready_made(folder: Path | None, environ: Mapping[str, str]) -> tuple[dict[str, Path], tuple[str, ...]]:
    found: dict[str, Path] = {}
    notes: list[str] = []
    for part in PARTS if folder else ():
        assert folder is not None
        path = folder / part
        if not os.access(path, os.X_OK):
            continue
        version = _version_of(path, _VERSION_ARGUMENTS[part], environ)
        if version >= _OLDEST[part]:
            found[part] = path
        else:
            wanted, had = (".".join(map(str, numbers)) or "unknown" for numbers in (_OLDEST[part], version))
            notes.append(f"{path} is version {had}, older than {wanted}: building our own")
    return found, tuple(notes)


def _version_of(program: Path, arguments: tuple[str, ...], environ: Mapping[str, str]) -> tuple[int, ...]:
    try:
        answer = subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=False, timeout=20, env=dict(environ)
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return version_from_text(answer.stdout) if answer.returncode == 0 else ()


def _recipe() -> Recipe:
    module = kube_module()
    version = kubernetes_version(module)
    major, minor, *_ = version_from_text(version)
    names = {"gitVersion": version, "gitMajor": str(major), "gitMinor": str(minor)}
    package = "k8s.io/component-base/version"
    return Recipe(
        program="kube",
        module=module,
        package=".",
        linker_flags=" ".join(["-s", "-w", *(f"-X {package}.{name}={value}" for name, value in names.items())]),
        title="the control plane",
        announcement="Building the control plane (etcd, kube-apiserver, kube-scheduler, kube-controller-manager, "
        "kubectl): once per machine and version, about 5 to 10 minutes on 2 cores.",
        packages_cold=2669,  # measured with 1.36.3
        seconds_cold=420.0,
    )


def _add_kubectl(folder: Path) -> None:
    shim = folder / "kubectl"
    shim.write_text(_SHIM)
    shim.chmod(0o755)


def main() -> int:
    """Build the parts and print where they are; 1 with one sentence on failure, 130 when interrupted."""
    try:
        binaries = ensure_shown(Settings.from_environ())
    except CodaError as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is a command
        return 1
    except KeyboardInterrupt:
        print("Interrupted; run it again to go on where it stopped.", file=sys.stderr)  # noqa: T201
        return 130
    for note in binaries.notes:
        print(note)  # noqa: T201
    for part in PARTS:
        print(f"{part:24} {' '.join(binaries.argv_by_part[part])}")  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
