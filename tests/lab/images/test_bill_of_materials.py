"""A bill of materials names what lies in the layer, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coda_lab.images.bill_of_materials import bill_of_materials
from coda_lab.images.oci_archive import write_layer

SITE, LIST = "packages/site-packages", "usr/share/coda/debian-packages"
FILES = {
    f"{SITE}/Foo_Bar-1.2.dist-info/METADATA": b"Name: Foo_Bar\nVersion: 1.2\nLicense-Expression: MIT\n\nbody",
    f"{SITE}/old-3.dist-info/METADATA": b"Name: old\nVersion: 3\nLicense: BSD\n more\n\n",
    f"{SITE}/none-4+local.dist-info/METADATA": b"Name: none\nVersion: 4+local\nLicense: UNKNOWN\n\n",
    f"{SITE}/foo/METADATA": b"no package",
    "elsewhere/x.dist-info/METADATA": b"Name: x\nVersion: 1\n",
    LIST: b"aa  libc6_2.36-9+deb12u9_amd64.deb\nbb  tzdata_1%3a2026f_all.deb\n",
}


@pytest.fixture
def bill(tmp_path: Path) -> dict[str, Any]:
    write_layer(tmp_path / "layer.tar", FILES)
    return bill_of_materials("coda.local/coda-x:0.1.0", tmp_path / "layer.tar", site=SITE, debian_list=LIST)


def test_every_package_is_named_as_scanners_look_it_up(bill: dict[str, Any]) -> None:
    assert [each["purl"] for each in bill["components"]] == [
        "pkg:pypi/coda@0.1.0",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u9?arch=amd64",
        "pkg:deb/debian/tzdata@1%3A2026f?arch=all",
        "pkg:pypi/foo-bar@1.2",
        "pkg:pypi/none@4%2Blocal",
        "pkg:pypi/old@3",
    ]
    by_name = {each["name"]: each for each in bill["components"]}
    assert by_name["libc6"]["hashes"] == [{"alg": "SHA-256", "content": "aa"}]
    assert by_name["tzdata"]["version"] == "1:2026f"
    licenses = {name: each.get("licenses") for name, each in by_name.items()}
    assert licenses["foo-bar"] == [{"license": {"name": "MIT"}}]
    assert licenses["old"] == [{"license": {"name": "BSD"}}]
    assert licenses["none"] is None


def test_it_is_a_cyclonedx_document_of_the_image(bill: dict[str, Any]) -> None:
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    image = bill["metadata"]["component"]
    assert (image["type"], image["name"], image["version"]) == ("container", "coda.local/coda-x", "0.1.0")
    refs = [each["bom-ref"] for each in bill["components"]]
    assert len(set(refs)) == len(refs)
    assert bill["dependencies"] == [{"ref": image["bom-ref"], "dependsOn": refs}]


def test_the_same_layer_has_the_same_bill(bill: dict[str, Any], tmp_path: Path) -> None:
    again = bill_of_materials("coda.local/coda-x:0.1.0", tmp_path / "layer.tar", site=SITE, debian_list=LIST)
    assert again == bill
    other = bill_of_materials("coda.local/coda-x:0.1.1", tmp_path / "layer.tar", site=SITE, debian_list=LIST)
    assert other["serialNumber"] != bill["serialNumber"]
