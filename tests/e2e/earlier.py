"""An earlier commit of this tree, whose programs run beside today's.

It is the last but one that changed what runs in a cluster and can be imported; CODA_UPGRADE_FROM names another.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DEFINITIONS: Final = ("crds", "deploy/manifests")
MOST_BROKEN: Final = 8
"""Commits in a row that may not be importable."""
IMPORT_ALL: Final = """
import importlib, pkgutil, sys
tree, *names = sys.argv[1:]
for name in names:
    package = importlib.import_module(name)
    assert package.__path__[0].startswith(tree), package.__path__
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith(("__main__", "migrations.env")):
            importlib.import_module(module.name)
"""


def git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


def earlier_commits(*changed: str) -> list[str]:
    """Those that changed one of these folders, but the last of them; the latest first. Skips where there is no history
    to take one from."""
    if chosen := os.environ.get("CODA_UPGRADE_FROM"):
        return [chosen]
    try:
        commits = git("log", f"-{1 + MOST_BROKEN}", "--format=%H", "--", *changed).decode().split()
    except (OSError, subprocess.CalledProcessError):
        commits = []
    if len(commits) < 2:
        pytest.skip("no earlier commit to upgrade from: this tree has no git history")
    return commits[1:]


def earlier_tree(folder: Path, *packages: str, beside: tuple[str, ...] = ()) -> Path:
    """Return a folder in `folder` with the sources of an earlier commit: definitions, core and these packages, of which
    one has changed since, and those `beside` them. A commit that cannot be imported was never installed anywhere."""
    said: list[str] = []
    for commit in earlier_commits("core/coda", "core/coda_kube", *packages, *DEFINITIONS):
        archive = git("archive", commit, "core", *packages, *beside, *DEFINITIONS)
        tree = folder / commit[:8]
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(tree, filter="data")
        if (why_not := why_not_imported(tree)) is None:
            return tree
        said.append(f"{commit[:8]}: {why_not}")
    pytest.fail(f"no earlier commit can be imported: {'; '.join(said)}")


def why_not_imported(tree: Path) -> str | None:
    """Return the last line of what fails when every module of the tree is imported from it; None if nothing does."""
    names = [path.parent.name for path in sorted(tree.glob("*/coda*/__init__.py"))]
    environ = {**os.environ, **environ_of(tree)}
    said = subprocess.run(
        [sys.executable, "-P", "-c", IMPORT_ALL, str(tree), *names], env=environ, capture_output=True, text=True
    )
    return said.stderr.splitlines()[-1] if said.returncode else None


def environ_of(tree: Path) -> dict[str, str]:
    """In which Python finds the tree's programs."""
    folders = sorted({str(path.parent.parent) for path in tree.glob("*/coda*/__init__.py")})
    return {"PYTHONPATH": os.pathsep.join(folders)}
