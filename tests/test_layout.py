"""Guards of the repository's layout that no linter knows."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(path.parent for path in ROOT.glob("*/coda*/__init__.py"))


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in listing.splitlines()]


def test_nothing_hides_the_standard_librarys_operator() -> None:
    assert not list(ROOT.glob("operator/__init__.py"))
    assert not (ROOT / "tests" / "operator").exists()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_every_package_is_typed_and_says_what_it_is(package: Path) -> None:
    assert (package / "py.typed").exists()
    assert (package / "__init__.py").read_text().startswith('"""')


def test_no_compiled_module_lies_beside_its_source() -> None:
    """It would be taken instead of the source, however old it is."""
    assert [path for package in PACKAGES for path in package.parent.rglob("*.so")] == []


def test_lock_files_hold_hashes_and_no_addresses() -> None:
    locks = [path for path in tracked_files() if path.match("requirements*.lock")]
    assert {path.name for path in locks} >= {"requirements.lock", "requirements-dev.lock"}
    for lock in locks:
        text = lock.read_text()
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text), lock
        pins = re.findall(r"^[a-z0-9][^ ]*==", text, re.MULTILINE)
        assert len(pins) == len(re.findall(r"^[a-z0-9][^\n]*\\\n +--hash=sha256:", text, re.MULTILINE)), lock


def test_no_package_registry_is_named() -> None:
    """People have their own mirrors; clients are configured, not projects."""
    hosts = re.compile(r"(pypi|pythonhosted|proxy\.golang|sum\.golang|npmjs|deb\.debian)\.(org|com)")
    named = [
        path.relative_to(ROOT)
        for path in tracked_files()
        if path.is_file() and path.name != Path(__file__).name and hosts.search(path.read_text(errors="replace"))
    ]
    assert named == []


def test_prose_of_markdown_pages_wraps_at_100_characters() -> None:
    """Tables, code blocks, comments and lines that are one word (a link) may be longer."""
    free = re.compile(r"\||    |<|[-*\s]*\S+$")
    for page in tracked_files():
        if page.suffix == ".md":
            prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
            assert [line for line in prose.splitlines() if len(line) > 100 and not free.match(line)] == [], page


def test_the_picture_is_what_its_source_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "architecture.py"))["svg"]()
    assert drawn == (ROOT / "docs" / "architecture.svg").read_text(), "run `make picture`"
