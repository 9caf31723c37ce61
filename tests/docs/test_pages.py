"""The documentation is what the code is: reference, pictures, links, commands, and the site as a whole."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from coda_cli.__main__ import command_line
from docs.reference_pages.pages import FOLDER, pages
from docs.site_links import linked, page_of
from tests.docs import blocks as code

ROOT = code.ROOT
DOCS = ROOT / "docs"
CALLS_CODA = re.compile(r"^(?:\.venv/bin/|kubectl )?coda (?!system)(.*)")


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


def test_the_reference_is_what_the_code_says(made: dict[str, str]) -> None:
    stale = [name for name, text in made.items() if (FOLDER / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run `make reference`"
    assert {path.name for path in FOLDER.iterdir()} == set(made)


def test_every_setting_says_what_it_is(made: dict[str, str]) -> None:
    rows = [line for line in made["settings.md"].splitlines() if line.startswith("| `CODA_")]
    assert len(rows) > 50
    assert [row for row in rows if row.split("|")[3].strip() == ""] == []


def test_the_pictures_are_what_their_source_draws() -> None:
    source = runpy.run_path(str(DOCS / "concepts.py"))
    drawn = {name: source["svg"](picture) for name, picture in source["PICTURES"].items()}
    assert drawn == {path.name: path.read_text() for path in (DOCS / "pictures").glob("*.svg")}, "run `make picture`"


@pytest.mark.parametrize("page", code.pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_pages_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"`[^`\n]*`", "", text)):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), target
    if page.is_relative_to(DOCS):
        assert linked(text, page.relative_to(DOCS).as_posix())[1] == []
    else:
        for name in re.findall(r"`(docs/[\w./-]+)`", text):
            assert (ROOT / name).exists() or page_of(name, "index.md"), name


def test_a_page_is_found_beside_or_from_the_top_and_nowhere_else() -> None:
    assert page_of("docs/upgrading.md", "runbooks/CodaAgentSlow.md") == "upgrading.md"
    assert page_of("metrics.md", "reference/events.md") == "metrics.md"
    assert page_of("decisions/0061", "concepts.md") == "decisions/0061-a-throttle-proves-that-it-helps.md"
    assert page_of("../README.md", "index.md") is None
    assert page_of("nothing.md", "index.md") is None
    assert linked("```\n`nothing.md`\n```\n", "index.md") == ("```\n`nothing.md`\n```\n", [])
    assert linked("see `upgrading.md`", "index.md") == ("see [Upgrading](upgrading.md)", [])


def coda_commands() -> list[tuple[str, str]]:
    found = [(page, match[1]) for page, line in code.commands() for match in [CALLS_CODA.match(line)] if match]
    return sorted(set(found))


def test_commands_of_the_documentation_are_there() -> None:
    assert len(coda_commands()) > 30


@pytest.mark.parametrize(("page", "line"), coda_commands())
def test_commands_parse(page: str, line: str) -> None:
    """With the real command line; nothing is run. What is piped or redirected is the shell's."""
    words = [word for word in shlex.split(re.split(r"\s[|>&<]|;", line)[0]) if word != "PARTS"]  # stands for options
    command = typer.main.get_command(command_line())
    context = command.make_context("coda", list(words), resilient_parsing=False)
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, inner, rest = command.resolve_command(context, rest)
        assert inner is not None, f"{page}: {line}"
        command, context = inner, inner.make_context(name, rest, parent=context)


def test_make_targets_of_the_documentation_are_there() -> None:
    targets = set(re.findall(r"^([a-z0-9]+(?:-[a-z0-9]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for _, line in code.commands() for word in re.findall(r"^make ([a-z0-9-]+)", line)}
    assert {"demo", "kube", "results"} <= named
    assert named - targets == set()


def test_the_site_is_built_strict_and_fetches_nothing(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1", "HOME": str(tmp_path)},
    )
    assert built.returncode == 0, built.stdout + built.stderr
    html = [*tmp_path.rglob("*.html")]
    assert len(html) > 100
    loaded = re.compile(r"<(?:script|img|iframe|link)[^>]* (?:src|href)=[\"']?(?:https?:)?//", re.IGNORECASE)
    assert [path for path in html if loaded.search(path.read_text(encoding="utf-8"))] == []
    outside = set(re.findall(r"https?://[^\s\"'<>)]+", " ".join(path.read_text(encoding="utf-8") for path in html)))
    hosts = re.compile(r"(pypi|pythonhosted|npmjs|unpkg|jsdelivr|cdnjs|googleapis|docker)\.")
    assert sorted(url for url in outside if hosts.search(url)) == []


def test_every_page_is_in_the_sites_menu_or_left_out_on_purpose() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    named = set(re.findall(r"[\w/.-]+\.md", str(config["nav"])))
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert {page for page in there - named if not page.startswith(("runbooks/", "decisions/0"))} == set()


def test_commands_that_open_the_device_files_of_gpus_may_do_so() -> None:
    """A container of `kubectl debug` is unprivileged otherwise: nvidia-smi would fail on healthy GPUs."""
    found = [line for _, line in code.commands() if "kubectl debug" in line and "nvidia-smi" in line]
    assert len(found) >= 2
    assert [line for line in found if "--profile=sysadmin" not in line] == []


def test_commands_that_debug_a_node_do_so_where_the_pools_policies_let_anybody() -> None:
    """`kubectl debug node/...` makes a pod that tolerates every taint and names its node."""
    found = [line for _, line in code.commands() if "kubectl debug" in line and " node/" in line]
    assert len(found) >= 3
    assert [line for line in found if "-n kube-system" not in line] == []


def test_jobs_of_torchrun_have_shared_memory() -> None:
    """Without a volume /dev/shm has 64 MiB, and data loaders and NCCL end with errors that name no cause."""
    texts = [(block.page, block.text) for block in code.blocks()]
    texts += [(name, (ROOT / "examples" / name).read_text()) for name in SHARE_MEMORY]
    found = [(page, text) for page, text in texts if "command: [torchrun" in text and "kind: TrainingJob" in text]
    assert len(found) >= 5 + len(SHARE_MEMORY)
    for page, text in found:
        pod = yaml.safe_load(text)["spec"]["template"]["spec"]
        names = {mount["name"] for mount in pod["containers"][0]["volumeMounts"] if mount["mountPath"] == "/dev/shm"}
        memory = {volume["name"] for volume in pod["volumes"] if volume.get("emptyDir", {}).get("medium") == "Memory"}
        assert names, page
        assert names <= memory, page


SHARE_MEMORY = ("20-gang-of-16-gpus.yaml", "30-within-one-rack.yaml", "70-whole-cluster.yaml")


def test_one_example_needs_no_script_of_its_users() -> None:
    (job,) = yaml.safe_load_all((ROOT / "examples" / "05-smoke-test.yaml").read_text())
    (main,) = job["spec"]["template"]["spec"]["containers"]
    assert main["command"] == ["python", "-c"]
    (program,) = main["args"]
    compile(program, "smoke test", "exec")
