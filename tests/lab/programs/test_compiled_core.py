"""The compiled core's cache and what is missing for it; compiling itself is `make compiled`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coda_lab.host.paths import Settings
from coda_lab.host.processes import python_path
from coda_lab.programs.compiled_core import NO_COMPILER, NoCompiler, cache_key, ensure


def tree(folder: Path) -> Path:
    (folder / "pyproject.toml").write_text('[tool.hatch.build]\ndev-mode-dirs = ["core"]\n[project]\nname = "coda"\n')
    for name in ("hatch_build.py", "core/coda/model/job.py", "core/coda_sim/profile_sets/paper.json"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


@pytest.mark.parametrize(
    "changed", ["hatch_build.py", "core/coda/model/job.py", "core/coda_sim/profile_sets/paper.json"]
)
def test_what_is_built_is_kept_by_content(changed: str, tmp_path: Path) -> None:
    root = tree(tmp_path)
    key = cache_key(root, {})
    (root / "core" / "coda" / "__pycache__").mkdir()
    (root / "core" / "coda" / "__pycache__" / "model.pyc").write_bytes(b"1")
    assert cache_key(root, {}) == key
    assert cache_key(root, {"MYPYC_OPT_LEVEL": "1"}) != key
    (root / changed).write_text("something else")
    assert cache_key(root, {}) != key


def test_what_is_built_depends_on_how_it_is_built_and_on_nothing_else_of_the_project(tmp_path: Path) -> None:
    project = tree(tmp_path) / "pyproject.toml"
    key = cache_key(tmp_path, {})
    project.write_text(project.read_text().replace("coda", "other"))
    assert cache_key(tmp_path, {}) == key
    project.write_text(project.read_text().replace("core", "source"))
    assert cache_key(tmp_path, {}) != key


def test_a_machine_without_a_compiler_is_told_in_one_sentence(tmp_path: Path) -> None:
    environ = {"CODA_CACHE_DIR": str(tmp_path), "CC": "no-such-compiler -O2", "PATH": "/usr/bin"}
    with pytest.raises(NoCompiler, match="needs a C compiler, and there is no no-such-compiler"):
        ensure(Settings.from_environ(environ))
    command = [sys.executable, "-m", "coda_lab.programs.compiled_core"]
    ended = subprocess.run(command, env={**environ, "PYTHONPATH": python_path()}, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (NO_COMPILER, "", 1)
