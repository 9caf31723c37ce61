"""Compiles the policy core and the simulator's engine into the wheel, where asked for; else the wheel is pure Python.

Asked for with HATCH_BUILD_HOOK_ENABLE_CUSTOM=1; which modules: pyproject.toml. The sources are copied first, because a
compiled module beside its source would be taken instead of it, however old it is. mypyc's own variables hold:
MYPYC_OPT_LEVEL (0 to 3) and MYPYC_DEBUG_LEVEL.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGES = ("coda", "coda_sim")
_SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

modules = mypycify({modules}, opt_level="{opt}", debug_level="{debug}", multi_file=True)
setup(name="coda-compiled", ext_modules=modules)
"""
"""One C file for each module: gcc needs 178 s of CPU instead of 490 for one file of all, and the result is as fast."""


class CompiledCore(BuildHookInterface[BuilderConfig]):
    """Adds the compiled modules; their sources stay in the wheel, for tracebacks and for people."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say what comes into the wheel. An editable installation stays pure: its sources change."""
        if version == "editable":
            return
        self._folder = TemporaryDirectory(prefix="coda-compiled-")
        folder = Path(self._folder.name)
        _compile(Path(self.root) / "core", folder, self.config["modules"], self.config["pure"])
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        libraries = sorted([*folder.glob("*.so"), *folder.glob("coda*/**/*.so")])
        build_data["force_include"].update({str(path): str(path.relative_to(folder)) for path in libraries})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy, now that the wheel is written."""
        if version != "editable":
            self._folder.cleanup()


def _compile(core: Path, folder: Path, patterns: list[str], pure: list[str]) -> None:
    for package in _PACKAGES:
        shutil.copytree(core / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    found = _matching(folder, patterns) - _matching(folder, pure)
    flags = f"{os.environ.get('CFLAGS') or sysconfig.get_config_var('CFLAGS')} -w"  # warnings take half the time
    opt, debug = os.environ.get("MYPYC_OPT_LEVEL", "3"), os.environ.get("MYPYC_DEBUG_LEVEL", "1")
    (folder / "setup.py").write_text(_SETUP.format(modules=sorted(found), opt=opt, debug=debug))
    ended = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=folder,
        env={**os.environ, "CFLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise RuntimeError(f"mypyc could not compile the core:\n{ended.stdout[-20_000:]}")


def _matching(folder: Path, patterns: list[str]) -> set[str]:
    return {str(path.relative_to(folder)) for pattern in patterns for path in folder.glob(pattern)}
