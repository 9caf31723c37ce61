"""An image holds all that its packages read."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from coda_lab.host.paths import sources
from coda_lab.images.image import PARTS, coda_files, version_files

RULES = "from coda.diagnosis.rules import built_in_rules; print(len(built_in_rules().rules))"


@pytest.mark.parametrize("part", PARTS)
def test_every_file_of_the_packages_is_in_the_image(part: str) -> None:
    files = coda_files(sources(), PARTS[part])
    for name in ("coda", "coda_kube", PARTS[part].package):
        (package,) = importlib.import_module(name).__path__
        for path in Path(package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                inside = f"/site-packages/{path.relative_to(Path(package).parent)}"
                assert [content for where, content in files.items() if where.endswith(inside)] == [path.read_bytes()]


def test_the_rules_for_failures_are_read_from_it(tmp_path: Path) -> None:
    """The operator reads them at its start."""
    for inside, content in coda_files(sources(), PARTS["operator"]).items():
        (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / inside).write_bytes(content)
    (site,) = tmp_path.rglob("site-packages")
    told = subprocess.run(
        [sys.executable, "-S", "-c", RULES], env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert int(told.stdout) > 50, told.stderr


def test_its_programs_know_of_which_build_they_are(tmp_path: Path) -> None:
    for inside, content in version_files("0.1.0-1a2b3c4d5e6f-dirty-00112233").items():
        (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / inside).write_bytes(content)
    (site,) = tmp_path.rglob("site-packages")
    asked = "from importlib import metadata; print(metadata.version('coda'))"
    told = subprocess.run(
        [sys.executable, "-S", "-c", asked], env={"PYTHONPATH": str(site)}, check=True, capture_output=True, text=True
    )
    assert told.stdout == "0.1.0+1a2b3c4d5e6f.dirty.00112233\n"
