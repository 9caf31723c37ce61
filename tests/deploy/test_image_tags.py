"""Two builds that differ have two tags, so that an upgrade rolls the newer one out."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.deploy.charts import Helm, Json, container_of, find
from tests.deploy.images import instructions

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy" / "image-tag.sh"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NOBODY = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the script with a version beside it, not yet in git."""
    (tmp_path / "deploy").mkdir()
    shutil.copy(SCRIPT, tmp_path / "deploy")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "part.py").write_text("one = 1\n")
    return tmp_path


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", folder, *NOBODY, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def tag(folder: Path) -> str:
    """The tag, asked for from elsewhere."""
    script = folder / "deploy" / SCRIPT.name
    return subprocess.run([script], cwd="/", check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a change")
    return git(folder, "rev-parse", "--short=12", "HEAD")


def test_a_commit_has_a_tag_of_its_own(checkout: Path) -> None:
    git(checkout, "init", "--quiet")
    first = commit(checkout)
    assert tag(checkout) == f"{VERSION}-{first}"


def test_every_change_that_is_not_committed_changes_the_tag(checkout: Path) -> None:
    git(checkout, "init", "--quiet")
    first = commit(checkout)
    seen = {tag(checkout)}
    for file, text in (("part.py", "two = 2\n"), ("part.py", "three = 3\n"), ("new.py", ""), ("new.py", "one = 1\n")):
        (checkout / file).write_text(text)
        assert re.fullmatch(rf"{re.escape(VERSION)}-{first}-dirty-[0-9a-f]{{8}}", tag(checkout))
        seen.add(tag(checkout))
    assert len(seen) == 5


def test_without_a_checkout_it_is_the_version(checkout: Path) -> None:
    assert tag(checkout) == VERSION
    git(checkout, "init", "--quiet")  # unpacked into somebody else's repository
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "theirs")
    assert tag(checkout) == VERSION


def test_make_builds_all_images_with_that_tag_and_says_how_to_install_them() -> None:
    told = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "images"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    wanted = tag(ROOT)
    for part in ("operator", "extender", "agent"):
        assert f"docker build -t coda-{part}:{wanted} " in told
    assert told.count(f"--build-arg IMAGE_TAG={wanted} .") == 3
    assert f"--set image.tag={wanted}" in told


@pytest.mark.parametrize(
    ("given", "version"),
    [("0.1.0-1a2b3c4d5e6f-dirty-00112233", "0.1.0+1a2b3c4d5e6f.dirty.00112233"), ("0.1.0", "0.1.0"), ("", None)],
)
def test_an_image_tells_its_programs_their_build(given: str, version: str | None, tmp_path: Path) -> None:
    (command,) = (line for line in instructions("packages") if line.startswith("RUN ") and "dist-info" in line)
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    shell = command.removeprefix("RUN ").replace("/packages/", f"{tmp_path}/")
    subprocess.run(["sh", "-c", shell], env={"PATH": "/usr/bin:/bin", "IMAGE_TAG": given}, check=True)
    found = {one.version for one in metadata.distributions(name="coda", path=[str(site)])}
    assert found == ({version} if version else set())


def images(items: list[Json]) -> dict[str, str]:
    """The image of every part and Job that runs one of Coda's."""
    found = {part: container_of(items, part)["image"] for part in ("operator", "extender")}
    for kind, name in (("DaemonSet", "coda-agent"), ("Job", "coda-definitions"), ("Job", "coda-uninstall")):
        (container,) = find(items, kind, name)["spec"]["template"]["spec"]["containers"]
        found[name] = container["image"]
    return found


@pytest.mark.e2e
def test_one_value_names_the_tag_of_all_images(helm: Helm) -> None:
    items = helm.render("image.tag=0.1.0-abc")
    assert {image.rpartition(":")[2] for image in images(items).values()} == {"0.1.0-abc"}
    assert container_of(items, "scheduler")["image"].endswith(":v1.36.3")
    assert images(helm.render("image.tag=all", "operator.image.tag=own")) == {
        "operator": "coda-operator:own",
        "extender": "coda-extender:all",
        "coda-agent": "coda-agent:all",
        "coda-definitions": "coda-operator:own",
        "coda-uninstall": "coda-operator:own",
    }


DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.e2e
def test_an_image_may_be_named_by_its_digest_instead_of_a_tag(helm: Helm) -> None:
    parts = ("operator", "extender", "agent", "scheduler")
    items = helm.render("image.tag=ignored", *(f"{part}.image.digest={DIGEST}" for part in parts))
    assert {image.rpartition("@")[2] for image in images(items).values()} == {DIGEST}
    assert images(items)["coda-definitions"] == f"coda-operator@{DIGEST}"
    assert container_of(items, "scheduler")["image"] == f"registry.k8s.io/kube-scheduler@{DIGEST}"
    assert "at '/agent/image/digest'" in helm.refusal(f"agent.image.digest={DIGEST[:-1]}")
