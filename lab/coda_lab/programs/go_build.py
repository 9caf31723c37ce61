"""Compiles a Go module into one program, saying how far it is. Where the result is kept is not decided here."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coda_lab.host.errors import LabFailure, failure_from_os_error, last_lines
from coda_lab.host.processes import dies_with

_TICK_S = 0.5  # how often progress is told while the compiler is silent: the last minute is one link step
_NO_SPACE = b"no space left on device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to compile: `package` of the Go module in the folder `module`, into a program called `program`.

    `beside`: more packages, whose programs lie in the same folder under the last part of the package's name, as then
    `program` must be called. `tags`: Go's build tags.
    For people: its `title`, what is told when a build begins, and how many packages one with empty caches compiles."""

    program: str
    module: Path
    package: str
    linker_flags: str
    title: str
    announcement: str
    packages_cold: int
    beside: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """How far a build is. `current`: what was compiled or downloaded last."""

    downloaded: int = 0
    packages: int = 0
    current: str = ""
    elapsed_s: float = 0.0


def kubernetes_version(module: Path) -> str:
    """The Kubernetes version the module pins, such as v1.36.3."""
    return pinned_version(module, "k8s.io/kubernetes")


def pinned_version(module: Path, dependency: str) -> str:
    """The version of `dependency` that the Go module pins, such as v1.36.3."""
    match = re.search(rf"^\s*{re.escape(dependency)} (v\S+)", (module / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        raise LabFailure(f"{module / 'go.mod'} requires no {dependency}: restore the file from the repository.")
    return match.group(1)


def build(
    recipe: Recipe,
    go: Path,
    output: Path,
    *,
    log: Path,
    environ: Mapping[str, str],
    tell: Callable[[BuildProgress], None],
) -> None:
    """Compile into the file `output`. Raises LabFailure; interrupted, it leaves no compiler running."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as sink, _compiler(recipe, go, output, environ) as compiler:
            progress = _follow(compiler, sink.write, tell)
            code = compiler.wait()
    except OSError as error:
        raise failure_from_os_error(error, f"building {recipe.title}") from error
    if code == 0:
        tell(progress)
        return
    if _NO_SPACE in log.read_bytes():
        raise LabFailure(
            "The disk is full: a first build needs about 6 GB for Go's caches (GOCACHE, GOMODCACHE) and scratch files.",
            log=log,
        )
    raise LabFailure(f"Building {recipe.title} failed.", log=log, last_lines=last_lines(log))


@contextmanager
def _compiler(recipe: Recipe, go: Path, output: Path, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    compiler = subprocess.Popen(
        [
            str(go),
            "build",
            "-v",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags",
            recipe.linker_flags,
            "-tags",
            ",".join(recipe.tags),
            "-o",
            f"{output.parent}/" if recipe.beside else str(output),
            recipe.package,
            *recipe.beside,
        ],
        cwd=recipe.module,
        env={**environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=dies_with(os.getpid()),
    )
    try:
        yield compiler
    finally:
        if compiler.poll() is None:
            os.killpg(compiler.pid, signal.SIGKILL)
            compiler.wait()
        assert compiler.stdout is not None
        compiler.stdout.close()


def _follow(
    compiler: subprocess.Popen[bytes], keep: Callable[[bytes], object], tell: Callable[[BuildProgress], None]
) -> BuildProgress:
    assert compiler.stdout is not None
    began_s = time.monotonic()
    downloaded = packages = 0
    current, rest = "", b""
    with selectors.DefaultSelector() as selector:
        selector.register(compiler.stdout, selectors.EVENT_READ)
        while True:
            if selector.select(_TICK_S):
                chunk = os.read(compiler.stdout.fileno(), 65536)
                if not chunk:
                    break
                keep(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(b"go: downloading "):
                        downloaded += 1
                        current = line.decode(errors="replace").removeprefix("go: downloading ")
                    elif line and b" " not in line:
                        packages += 1
                        current = line.decode(errors="replace")
            elapsed_s = time.monotonic() - began_s
            tell(BuildProgress(downloaded=downloaded, packages=packages, current=current, elapsed_s=elapsed_s))
    elapsed_s = time.monotonic() - began_s
    return BuildProgress(downloaded=downloaded, packages=packages, current=current, elapsed_s=elapsed_s)
