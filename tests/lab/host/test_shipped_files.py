"""The package alone, as a wheel installs it, has no sources of a control plane: who asks for one hears what to do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coda_lab.host import paths
from tests.surface.sources import ROOT

SAID = "this needs a clone of Coda's repository: run `make demo` in one, or the command as its .venv/bin/coda"
PACKAGES = ("core/coda", "core/coda_kube", "core/coda_sim", "lab/coda_lab", "cli/coda_cli", "operator/coda_operator")
MORE = ("scheduler_extender/coda_extender", "node_agent/coda_agent")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a wheel is unpacked into, as deep as Python's own."""
    folder = tmp_path_factory.mktemp("installed") / "lib" / "python3" / "site-packages"
    for package in PACKAGES + MORE:
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / package, folder / Path(package).name, ignore=ignored)
    return folder


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        (("demo",), 2),
        (("local", "up"), 1),
        (("replay", "trace.csv", "--local"), 2),
    ],
)
def test_a_command_that_needs_a_clone_says_so(installed: Path, command: tuple[str, ...], exit_code: int) -> None:
    shutil.copy(ROOT / "examples" / "traces" / "small.csv", installed.parent / "trace.csv")
    environ = {"PYTHONPATH": str(installed), "HOME": str(installed.parent), "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "coda_cli", *command],
        cwd=installed.parent,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.stderr.strip().splitlines()[-1:], ended.returncode) == ([f"coda: {SAID}"], exit_code)
    assert "Traceback" not in ended.stderr


def test_a_clone_has_every_file() -> None:
    files = (paths.kube_module, paths.helm_module, paths.node_sources, paths.chart, paths.crds, paths.manifests)
    assert [file().is_relative_to(ROOT) and file().is_dir() for file in files] == [True] * 6
