"""The images of operator and extender, made without Docker: their programs start there, as nobody.

The agent's runs on the real node (`tests/realnode`). Needs root and mmdebstrap; skipped with one line without them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from coda_lab.host.paths import Settings
from coda_lab.images.image import PARTS, PROGRAM, write_image
from tests.deploy.images import FOLDERS

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "operator": ("coda_operator", "coda_operator.uninstall", "coda_operator.definitions"),
    "extender": ("coda_extender",),
}


@pytest.fixture(scope="module", autouse=True)
def _rig() -> None:
    if os.geteuid() != 0 or shutil.which(PROGRAM) is None:
        if os.environ.get("CODA_REQUIRE_RIGS") == "1":
            pytest.fail(f"images are made as root with {PROGRAM}")
        pytest.skip(f"images are made as root with {PROGRAM}")


@pytest.mark.parametrize("part", MODULES)
def test_its_programs_start_in_it_as_nobody(part: str, tmp_path: Path) -> None:
    archive = tmp_path / f"{part}.tar"
    write_image(PARTS[part], archive, metadata.version("coda"), Settings.from_environ(), print)
    config = unpack(archive, tmp_path)
    root, user = tmp_path / "root", config["config"]["User"]
    environ = dict(pair.split("=", 1) for pair in config["config"]["Env"])
    for module in MODULES[part]:
        command = ["chroot", f"--userspec={user}", str(root), *config["config"]["Entrypoint"][:2], module]
        environ |= {"CODA_KUBECONFIG": "/nowhere", "CODA_DEFINITIONS_DIR": "/nowhere"}
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert ended.returncode != 0
        assert "/nowhere" in ended.stderr
        assert "Traceback" not in ended.stderr, ended.stderr


@pytest.mark.parametrize("part", MODULES)
def test_its_bill_names_what_its_lock_file_pins(part: str, tmp_path: Path) -> None:
    archive = tmp_path / f"{part}.tar"
    write_image(PARTS[part], archive, metadata.version("coda"), Settings.from_environ(), print)
    bill = json.loads(archive.with_suffix(".cdx.json").read_text())
    wheels = {each["purl"] for each in bill["components"] if each["purl"].startswith("pkg:pypi/")}
    lock = (ROOT / FOLDERS[part] / "requirements.lock").read_text()
    pinned = set(re.findall(r"^([a-z0-9][^ =]*)==([^ ]+)", lock, re.MULTILINE))
    own = f"pkg:pypi/coda@{metadata.version('coda')}"
    assert wheels == {f"pkg:pypi/{name.replace('.', '-')}@{version}" for name, version in pinned} | {own}
    debian = {each["name"] for each in bill["components"] if each["purl"].startswith("pkg:deb/")}
    assert {"libc6", "python3.11-minimal", "ca-certificates"} <= debian


def unpack(archive: Path, folder: Path) -> dict[str, dict[str, str]]:
    """Unpack the layers, the lowest first, into `root`; return the image's configuration."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "parts", filter="data")

    def blob(descriptor: dict[str, str]) -> Path:
        return folder / "parts" / "blobs" / descriptor["digest"].replace(":", "/")

    (entry,) = json.loads((folder / "parts" / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(entry).read_text())
    (folder / "root").mkdir()
    for layer in manifest["layers"]:
        subprocess.run(["tar", "-xf", blob(layer), "-C", folder / "root"], check=True)
    config: dict[str, dict[str, str]] = json.loads(blob(manifest["config"]).read_text())
    return config
