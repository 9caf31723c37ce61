"""Guards of the repository's layout that no linter knows."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
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


GENERATED = re.compile(r"_pb2\.py$")


def modules(*, generated: bool = False) -> list[Path]:
    """The tracked Python files."""
    files = [path for path in tracked_files() if path.suffix == ".py" and path.is_file()]
    return [path for path in files if generated or not GENERATED.search(path.name)]


def test_modules_have_at_most_400_lines() -> None:
    assert [str(path.relative_to(ROOT)) for path in modules() if path.read_text().count("\n") > 400] == []


def test_folders_of_packages_have_at_most_12_modules() -> None:
    counts = Counter(path.parent for path in modules() if path.name not in ("__init__.py", "__main__.py"))
    full = [folder for folder, count in counts.items() if count > 12]
    assert [folder for folder in full if {folder, *folder.parents}.intersection(PACKAGES)] == []


def test_public_classes_of_the_core_and_the_simulator_have_different_names() -> None:
    core = ROOT / "core"
    names = Counter(
        statement.name
        for path in modules()
        if {core / "coda", core / "coda_sim"} & set(path.parents)
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_faces_of_the_core_have_at_most_12_names() -> None:
    faces = {path.parent.name: exported(path) for path in (ROOT / "core" / "coda").glob("*/__init__.py")}
    assert {"model", "policy", "contention", "allocator", "lifecycle"} <= {
        name for name, names in faces.items() if names
    }
    assert {name: len(names) for name, names in faces.items() if len(names) > 12} == {}


def exported(path: Path) -> list[str]:
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and [getattr(one, "id", "") for one in statement.targets] == ["__all__"]:
            names: list[str] = ast.literal_eval(statement.value)
            return names
    return []


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] or parts).removesuffix(".__init__")


PATH_BY_MODULE = {dotted(path): path for path in modules(generated=True) if path.relative_to(ROOT).parts[0] != "tests"}


def test_no_imports_go_in_a_circle() -> None:
    """Imports for types alone count too: `graphlib` raises CycleError with the circle."""
    graph = {
        module: {name for name in imported(path) if name in PATH_BY_MODULE and name != module}
        for module, path in PATH_BY_MODULE.items()
    }
    assert len(graph) > 300
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)


def imported(path: Path) -> Iterator[str]:
    """Modules that are imported; a package only if something other than its modules is imported from it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            of_modules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from of_modules
            if not all(name in PATH_BY_MODULE for name in of_modules):
                yield node.module


def test_the_core_opens_no_file_and_reads_no_clock() -> None:
    """The import contracts forbid the modules; `open` and the methods of dates need no import."""
    calls = re.compile(r"(?<![\w.])open\(|\b(date|datetime|time)\.(now|utcnow|today)\(")
    core = [path for path in modules() if ROOT / "core" / "coda" in path.parents]
    assert [str(path.relative_to(ROOT)) for path in core if calls.search(path.read_text())] == []


def test_make_finds_every_module_that_needs_a_control_plane() -> None:
    """It loads the modules that name the marker themselves, so no other file may hand it on."""
    mark = "pytest.mark" + ".e2e"
    naming = [path for path in tracked_files() if path.suffix == ".py" and path.is_file() and mark in path.read_text()]
    assert len(naming) > 20
    assert [path for path in naming if not path.name.startswith("test_")] == []


def test_migrations_of_the_history_are_one_chain() -> None:
    """Two that follow the same one, each right on its own branch, would leave a database without a way up."""
    folder = ROOT / "operator" / "coda_operator" / "history" / "migrations" / "versions"
    texts = [path.read_text() for path in sorted(folder.glob("r*.py"))]
    found = [
        re.search(r'^revision = "(\d+)"\ndown_revision(?:: str \| None)? = (?:"(\d+)"|None)', one, re.M)
        for one in texts
    ]
    chain = [(match[1], match[2]) for match in found if match is not None]
    numbers = [f"{number:04d}" for number in range(1, len(texts) + 1)]
    assert chain == list(zip(numbers, [None, *numbers], strict=False))
