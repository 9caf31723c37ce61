"""Compiles a Go module into one program, and says how far it is.

An interrupted build continues where it was. Go's build cache has every package that was compiled, and the log has their
names, so the progress continues too.
"""

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

_TICK_S = 0.5  # how often progress is told while the compiler is silent; it says nothing while it links
_LINK_SHARE = 0.08  # of a cold build on 2 cores: linking comes last and takes half a minute
_HEAVIER_LATER = 1.5  # the packages that come last are the largest: work = packages ** 1.5, fitted to a cold build
_SURE_AFTER_S, _SURE_AFTER_SHARE = 20.0, 0.02  # before that, the rate of this build says little
_MOST_UNFINISHED = 100  # packages at once when an attempt is interrupted: about one for each core
_NO_SPACE = b"no space left on device"
_DOWNLOADING = "go: downloading "


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to compile: `package` of the Go module in the folder `module`, into a program called `program`.

    `beside`: more packages, whose programs lie in the same folder. Then each program, also the first, is called like
    the last part of its package's name. `tags`: Go's build tags.
    For people: `title`; `announcement`, said when a build begins; and how many packages and seconds a build with empty
    caches takes on 2 idle cores."""

    program: str
    module: Path
    package: str
    linker_flags: str
    title: str
    announcement: str
    packages_cold: int
    seconds_cold: float
    beside: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """How far a build is.

    `downloaded`: modules in this attempt. `packages`: compiled, those of interrupted attempts included. `current`: what
    was compiled or downloaded last. `share`: of the whole work, 0..1. `left_s`: an estimate."""

    downloaded: int = 0
    packages: int = 0
    current: str = ""
    elapsed_s: float = 0.0
    share: float = 0.0
    left_s: float = 0.0


def kubernetes_version(module: Path) -> str:
    """The Kubernetes version the module pins, such as v1.36.3."""
    return pinned_version(module, "k8s.io/kubernetes")


def pinned_version(module: Path, dependency: str) -> str:
    """The version of `dependency` that the Go module pins, such as v1.36.3."""
    match = re.search(
        rf"^\s*(?:require )?{re.escape(dependency)} (v\S+)", (module / "go.mod").read_text(), re.MULTILINE
    )
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
    """Compile into the file `output`; `log` has what the compiler says, in all attempts.

    Raises LabFailure. Interrupted, it leaves no compiler running, and the next attempt continues."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab+") as sink, _compiler(recipe, go, output, environ) as compiler:
            began = sink.seek(0, os.SEEK_END)
            meter = _Meter(recipe, _packages_in(log))
            _follow(compiler, sink.write, meter, tell)
            code = compiler.wait()
    except OSError as error:
        raise failure_from_os_error(error, f"building {recipe.title}") from error
    if code == 0:
        tell(meter.progress())
        return
    if _NO_SPACE in log.read_bytes()[began:]:
        raise LabFailure(
            "The disk is full: a first build needs about 6 GB for Go's caches (GOCACHE, GOMODCACHE) and scratch files.",
            log=log,
        )
    raise LabFailure(f"Building {recipe.title} failed.", log=log, last_lines=last_lines(log))


class _Meter:
    """Counts what the compiler says. `earlier`: the packages that interrupted attempts compiled."""

    def __init__(self, recipe: Recipe, earlier: set[str]) -> None:
        self._recipe = recipe
        self._earlier = earlier
        self._fresh: set[str] = set()
        self._repeated = 0
        self._downloaded = 0
        self._current = ""
        self._began_s = time.monotonic()

    def note(self, line: str) -> None:
        """One line of the compiler's output."""
        if line.startswith(_DOWNLOADING):
            self._downloaded += 1
            self._current = line.removeprefix("go: ")
        elif _is_package(line):
            self._note_repeated(line)
            self._fresh.add(line)
            self._current = line

    def _note_repeated(self, package: str) -> None:
        """An interrupted attempt leaves a few packages unfinished; it leaves many when Go's build cache was removed."""
        if package in self._earlier:
            self._earlier.remove(package)
            self._repeated += 1
        if self._repeated > _MOST_UNFINISHED:
            self._earlier = set()

    def progress(self) -> BuildProgress:
        """How far it is now."""
        elapsed_s = time.monotonic() - self._began_s
        packages = len(self._earlier) + len(self._fresh)
        share = self._share(packages)
        fresh = share - self._share(len(self._earlier))
        linking = packages >= self._recipe.packages_cold
        pace_s = self._recipe.seconds_cold  # for the whole
        if elapsed_s >= _SURE_AFTER_S and fresh >= _SURE_AFTER_SHARE:
            pace_s = elapsed_s / fresh
        return BuildProgress(
            downloaded=self._downloaded,
            packages=packages,
            current="linking" if linking else self._current,
            elapsed_s=elapsed_s,
            share=share,
            left_s=pace_s * (1 - share),
        )

    def _share(self, packages: int) -> float:
        """The share of the work that this many packages are."""
        done = min(1.0, packages / self._recipe.packages_cold)
        return float((1 - _LINK_SHARE) * done**_HEAVIER_LATER)


def _packages_in(log: Path) -> set[str]:
    return set(filter(_is_package, log.read_text(errors="replace").splitlines()))


def _is_package(line: str) -> bool:
    """`go build -v` says the path of each package that it compiles, and nothing else, on a line."""
    return bool(line) and " " not in line


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
    compiler: subprocess.Popen[bytes],
    keep: Callable[[bytes], object],
    meter: _Meter,
    tell: Callable[[BuildProgress], None],
) -> None:
    """Tell the progress until the compiler ends."""
    assert compiler.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(compiler.stdout, selectors.EVENT_READ)
        while True:
            if selector.select(_TICK_S):
                chunk = os.read(compiler.stdout.fileno(), 65536)
                if not chunk:
                    return
                keep(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    meter.note(line.decode(errors="replace"))
            tell(meter.progress())
