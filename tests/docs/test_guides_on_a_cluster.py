"""What the guides say works, on a local control plane: every YAML block, and the quickstart's shell."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from coda_kube.api.client import AlreadyExists, Client
from coda_lab.host.paths import Settings
from coda_lab.local.cluster import LocalCluster
from coda_lab.programs.control_plane import ensure_shown
from tests.docs.blocks import ROOT, Block, blocks
from tests.e2e.conftest import admin, cluster

__all__ = ["admin", "cluster"]  # fixtures

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
BIN = Path(sys.executable).parent
BUILT_BY_MAKE = ("make kube", "make setup")


def objects_in(block: Block) -> list[dict[str, object]]:
    """The whole objects of a YAML block; an indented block counts if it begins like one."""
    if block.language != "yaml" and not block.text.startswith("apiVersion: "):
        return []
    try:
        found = [*yaml.safe_load_all(block.text)]
    except yaml.YAMLError:
        return []
    return [one for one in found if isinstance(one, dict) and {"apiVersion", "kind", "metadata"} <= one.keys()]


def documented() -> list[tuple[str, dict[str, object]]]:
    return [(block.page, found) for block in blocks() for found in objects_in(block)]


async def test_every_object_of_the_documentation_is_taken_by_the_api_server(
    cluster: LocalCluster, admin: Client
) -> None:
    """Dry runs with strict fields: a misspelt field is refused, too."""
    found = documented()
    assert len(found) > 10
    for name in sorted({str(one["metadata"].get("namespace", "default")) for _, one in found}):  # type: ignore[attr-defined]
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        with suppress(AlreadyExists):
            await admin.create("/api/v1/namespaces", body)
    done = await asyncio.create_subprocess_exec(
        *(*cluster.kubectl, f"--kubeconfig={cluster.kubeconfig('admin')}"),
        *("create", "--dry-run=server", "--validate=strict", "-f", "-"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await done.communicate(yaml.safe_dump_all([one for _, one in found]).encode())
    assert done.returncode == 0, f"{said.decode()}\nof {sorted({page for page, _ in found})}"


def shell(page: str, language: str, has: str = "") -> str:
    """All shell of a page, or of one block of it, in order; it stops at the first command that fails."""
    text = "".join(
        block.text for block in blocks() if (block.page, block.language) == (page, language) and has in block.text
    )
    assert text
    for words in BUILT_BY_MAKE:
        text = re.sub(rf"^{words}\b.*\n", "", text, flags=re.MULTILINE)
    return f"set -euo pipefail\n{text}"


@pytest.mark.parametrize(
    ("page", "language", "has"), [("docs/quickstart.md", "bash", ""), ("README.md", "", "coda local up")]
)
def test_shell_works_as_it_is_written(page: str, language: str, has: str, tmp_path: Path) -> None:
    """In a cache of its own, so that it meets no cluster of the user's; what was built is the real one's."""
    real = Settings.from_environ()
    ensure_shown(real)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kube").symlink_to(real.cache / "kube")
    environ = {**os.environ, "CODA_CACHE_DIR": str(cache), "PATH": f"{BIN}:{os.environ['PATH']}"}
    environ.pop("KUBECONFIG", None)
    text = shell(page, language, has).replace('"$PWD/.venv/bin:$PATH"', f"{BIN}:$PATH")
    text = text.replace("--out study", f"--out {tmp_path / 'study'}")
    try:
        done = subprocess.run(
            ["bash", "-c", text], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240, check=False
        )
    finally:
        subprocess.run([BIN / "coda", "local", "down"], env=environ, check=False, timeout=60, capture_output=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "too-large" in done.stdout
    assert "no breach" in done.stdout
    if "simulate" in text:
        assert (tmp_path / "study" / "report.html").is_file()
