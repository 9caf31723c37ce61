"""What the guides say works, on a local control plane: every YAML block, and the quickstart's shell."""

from __future__ import annotations

import asyncio
import os
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


def script(page: str) -> str:
    """All shell of a page in order; it stops at the first command that fails."""
    lines = [block.text for block in blocks() if block.page == page and block.language == "bash"]
    text = "".join(lines)
    for words in BUILT_BY_MAKE:
        text = text.replace(f"{words}\n", "")
    return f"set -euo pipefail\n{text}"


def test_the_quickstart_works_as_it_is_written(tmp_path: Path) -> None:
    """In a cache of its own, so that it meets no cluster of the user's; what was built is the real one's."""
    environ = dict(os.environ)
    real = Settings.from_environ()
    binaries = ensure_shown(real)
    cache = tmp_path / "cache"
    cache.mkdir()
    for path in real.cache.iterdir():
        if path.name != "local":
            (cache / path.name).symlink_to(path)
    environ |= {"CODA_CACHE_DIR": str(cache), "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}
    environ.pop("KUBECONFIG", None)
    assert binaries
    text = script("docs/quickstart.md").replace("--out study", f"--out {tmp_path / 'study'}")
    try:
        done = subprocess.run(
            ["bash", "-c", text], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240, check=False
        )
    finally:
        subprocess.run([sys.executable, "-m", "coda_cli", "local", "down"], env=environ, check=False, timeout=60)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "NeverFits" in done.stdout
    assert "no breach" in done.stdout
    assert (tmp_path / "study" / "report.html").is_file()
