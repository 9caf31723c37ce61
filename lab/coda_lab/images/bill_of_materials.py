"""What an image is made of, as a CycloneDX bill of materials: read from its layer, not from what was asked for.

Source: CycloneDX 1.6 (JSON), and the package URL specification.
"""

from __future__ import annotations

import tarfile
import uuid
from collections.abc import Iterator, Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

Component = Mapping[str, Any]

_NAMESPACE: Final = uuid.UUID("5f0f9c3e-6d0c-4f6e-9a53-1c2f7d1a6c04")  # ours; only has to stay the same
_NO_LICENSE: Final = {"", "UNKNOWN"}


def bill_of_materials(image: str, layer: Path, *, site: str, debian_list: str) -> dict[str, Any]:
    """Return the bill of the image `image` (`repository:tag`) with this lower layer. The same layer, the same bill.

    `site`: the folder of Python's packages in it; `debian_list`: the file that names Debian's."""
    repository, _, version = image.rpartition(":")
    components = sorted(_components(layer, site, debian_list), key=lambda each: str(each["purl"]))
    coda = _component("application", "coda", version, f"pkg:pypi/coda@{quote(version)}", licenses=["Apache-2.0"])
    found = [coda, *components]
    serial = uuid.uuid5(_NAMESPACE, "\n".join((image, *(str(each["purl"]) for each in found))))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": image, "name": repository, "version": version}},
        "components": found,
        "dependencies": [{"ref": image, "dependsOn": [each["bom-ref"] for each in found]}],
    }


def _components(layer: Path, site: str, debian_list: str) -> Iterator[Component]:
    with tarfile.open(layer) as tar:
        for entry in tar:
            name = entry.name.removeprefix("./")
            is_wheel = name.startswith(f"{site}/") and name.endswith(".dist-info/METADATA")
            if not (is_wheel or name == debian_list) or (file := tar.extractfile(entry)) is None:
                continue
            text = file.read().decode()
            yield from [_wheel(text)] if is_wheel else map(_debian, text.splitlines())


def _wheel(metadata: str) -> Component:
    headers = HeaderParser().parsestr(metadata)
    name, version = headers["Name"].lower().replace("_", "-").replace(".", "-"), headers["Version"]
    said = headers["License-Expression"] or (headers["License"] or "").partition("\n")[0].strip()
    licenses = [] if said in _NO_LICENSE else [said]
    return _component("library", name, version, f"pkg:pypi/{name}@{quote(version)}", licenses=licenses)


def _debian(line: str) -> Component:
    """Of a line of sha256sum. apt writes the colon of an epoch as %3a in file names."""
    digest, _, file = line.partition("  ")
    name, version, architecture = file.removesuffix(".deb").split("_")
    version = version.replace("%3a", ":")
    purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"
    return {**_component("library", name, version, purl), "hashes": [{"alg": "SHA-256", "content": digest}]}


def _component(kind: str, name: str, version: str, purl: str, *, licenses: list[str] | None = None) -> Component:
    found: dict[str, Any] = {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licenses:
        found["licenses"] = [{"license": {"name": one}} for one in licenses]
    return found
