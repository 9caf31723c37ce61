"""Every module that is not declared pure is compiled, at every depth of the packages. Run by `make compiled`."""

from __future__ import annotations

import os
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import coda

ROOT = Path(__file__).resolve().parents[2]
COMPILED = Path(coda.__file__).parents[1]

needs_compiled = pytest.mark.skipif(os.environ.get("CODA_COMPILED") != "1", reason="for the compiled core")


def hook() -> dict[str, list[str]]:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    settings: dict[str, list[str]] = build["targets"]["wheel"]["hooks"]["custom"]
    return settings


def is_pure(module: str) -> bool:
    return module.endswith("/__init__.py") or any(fnmatch(module, pattern) for pattern in hook()["pure"])


def modules_of(folder: Path, *packages: str) -> list[str]:
    return sorted(str(path.relative_to(folder)) for package in packages for path in (folder / package).rglob("*.py"))


def test_what_is_declared_pure_is_there() -> None:
    """A module that moved would be compiled without a word, and a compiled dataclass forgets its annotations."""
    modules = modules_of(ROOT / "core", "coda", "coda_sim")
    assert [pattern for pattern in hook()["pure"] if not any((ROOT / "core").glob(pattern))] == []
    assert len([module for module in modules if not is_pure(module)]) > 50


@needs_compiled
def test_the_whole_core_and_the_engine_are_compiled_but_for_what_is_declared_pure() -> None:
    wanted = [module for module in modules_of(COMPILED, "coda", "coda_sim/engine") if not is_pure(module)]
    assert len(wanted) > 50
    missing = [module for module in wanted if not list((COMPILED / module).parent.glob(f"{Path(module).stem}.*.so"))]
    assert missing == []
