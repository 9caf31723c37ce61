"""An OCI archive says of each part what it is, and the same layers make the same bytes."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from coda_lab.images.image import PARTS
from coda_lab.images.oci_archive import ImageConfig, write_archive, write_layer
from tests.deploy.images import FOLDERS, instructions, module_of

NAME = "registry.local/some/image:1.2"
RUN = ImageConfig(entrypoint=("python", "-m", "program"), environ={"PATH": "/bin"})


@pytest.fixture
def layers(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "below.tar", tmp_path / "above.tar"]
    write_layer(paths[0], {"usr/b": b"b", "usr/a": b"a"})
    write_layer(paths[1], {"usr/a": b"other"})
    return paths


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {entry.name: file.read() for entry in tar if (file := tar.extractfile(entry)) is not None}


def test_every_part_is_found_by_its_digest_and_has_its_size(tmp_path: Path, layers: list[Path]) -> None:
    write_archive(tmp_path / "image.tar", NAME, layers, RUN)
    parts = members(tmp_path / "image.tar")

    def followed(descriptor: dict[str, Any]) -> bytes:
        content = parts[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == descriptor["digest"]
        assert len(content) == descriptor["size"]
        return content

    (entry,) = json.loads(parts["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == NAME
    manifest = json.loads(followed(entry))
    config = json.loads(followed(manifest["config"]))
    assert [followed(layer) for layer in manifest["layers"]] == [path.read_bytes() for path in layers]
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    assert config["config"] == {"Entrypoint": ["python", "-m", "program"], "Env": ["PATH=/bin"]}
    assert json.loads(parts["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    assert len(parts) == 2 + 2 + len(layers)  # layout and index, manifest and config


def test_the_same_layers_make_the_same_bytes(tmp_path: Path, layers: list[Path]) -> None:
    archives = [tmp_path / "first.tar", tmp_path / "second.tar"]
    for archive in archives:
        write_archive(archive, NAME, layers, RUN)
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_files_of_a_layer_are_readable_by_all_and_in_the_order_of_their_paths(layers: list[Path]) -> None:
    with tarfile.open(layers[0]) as tar:
        assert [(entry.name, entry.mode, entry.mtime, entry.uid) for entry in tar] == [
            ("usr/a", 0o644, 0, 0),
            ("usr/b", 0o644, 0, 0),
        ]


@pytest.mark.parametrize("part", FOLDERS)
def test_an_image_runs_what_the_dockerfile_says(part: str) -> None:
    image, lines = PARTS[part], instructions(FOLDERS[part])
    assert (image.folder, image.package) == (FOLDERS[part], module_of(part))
    assert image.config.entrypoint == ("python", "-m", module_of(part))
    wanted: dict[str, str] = {}
    for line in lines:
        if line.startswith("ENV "):
            wanted |= dict(word.split("=", 1) for word in line.removeprefix("ENV ").split())
    assert image.config.environ["PATH"].split(":")[0] == wanted.pop("PATH").split(":")[0]
    assert {name: image.config.environ[name] for name in wanted} == wanted
    assert set(image.config.environ) == {"PATH", *wanted}
    assert image.config.user == next((line.split()[1] for line in lines if line.startswith("USER ")), "")


def test_the_user_of_an_image_is_in_its_configuration(tmp_path: Path, layers: list[Path]) -> None:
    write_archive(tmp_path / "image.tar", NAME, layers, ImageConfig(entrypoint=("x",), user="65532:65532"))
    found = [
        json.loads(text)
        for name, text in members(tmp_path / "image.tar").items()
        if name.startswith("blobs/") and text.startswith(b"{")
    ]
    assert [each["config"]["User"] for each in found if "rootfs" in each] == ["65532:65532"]
