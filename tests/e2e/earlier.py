"""An earlier commit of this tree, whose programs run beside today's.

It is the last but one that changed what runs in a cluster; CODA_UPGRADE_FROM names another.
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


def git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


def earlier_commit(*changed: str) -> str:
    """The last but one that changed one of these folders. Skips where there is no history to take one from."""
    if chosen := os.environ.get("CODA_UPGRADE_FROM"):
        return chosen
    try:
        commits = git("log", "-2", "--format=%H", "--", *changed).decode().split()
    except (OSError, subprocess.CalledProcessError):
        commits = []
    if len(commits) < 2:
        pytest.skip("no earlier commit to upgrade from: this tree has no git history")
    return commits[1]


def earlier_tree(folder: Path, *packages: str, beside: tuple[str, ...] = ()) -> Path:
    """`folder` with the sources of an earlier commit: definitions, core and these folders, of which one has changed
    since, and those `beside` them."""
    commit = earlier_commit("core/coda", "core/coda_kube", *packages, *DEFINITIONS)
    archive = git("archive", commit, "core", *packages, *beside, *DEFINITIONS)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    names = [path.parent.name for path in sorted(folder.glob("*/coda*/__init__.py"))]
    where = f"import {', '.join(names)}; print({', '.join(f'{name}.__path__' for name in names)})"
    environ = {**os.environ, **environ_of(folder)}
    said = subprocess.run([sys.executable, "-P", "-c", where], env=environ, check=True, capture_output=True, text=True)
    assert said.stdout.count(str(folder)) == len(names), said.stdout
    return folder


def environ_of(tree: Path) -> dict[str, str]:
    """In which Python finds the tree's programs."""
    folders = sorted({str(path.parent.parent) for path in tree.glob("*/coda*/__init__.py")})
    return {"PYTHONPATH": os.pathsep.join(folders)}
