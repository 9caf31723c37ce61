"""Image archives made by hand hold what `ctr images import` looks for."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

from coda_lab.realnode.images import BUSYBOX, busybox_image, pause_image


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {entry.name: (tar.extractfile(entry) or io.BytesIO()).read() for entry in tar if entry.isfile()}


def test_the_manifest_names_the_image_and_the_configuration_the_layer() -> None:
    parts = members(busybox_image(b"program", ["sh", "ls", "busybox"]))
    (manifest,) = json.loads(parts["manifest.json"])
    assert manifest["RepoTags"] == [BUSYBOX]
    layer = parts[manifest["Layers"][0]]
    config = json.loads(parts[manifest["Config"]])
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert config["config"]["Cmd"] == ["/bin/sh"]


def test_every_applet_but_the_program_itself_is_a_link_to_it() -> None:
    layer = members(busybox_image(b"program", ["sh", "ls", "busybox"]))["layer.tar"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        found = {entry.name: (entry.linkname, entry.mode & 0o111) for entry in tar}
    assert {name: link for name, (link, _) in found.items()} == {
        "bin/busybox": "",
        "bin/sh": "busybox",
        "bin/ls": "busybox",
    }
    assert found["bin/busybox"][1] == 0o111


def test_the_same_program_makes_the_same_bytes() -> None:
    assert pause_image(b"x") == pause_image(b"x") != pause_image(b"y")
