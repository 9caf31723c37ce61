"""`docs/metrics.md` has every metric of the code with its type and labels, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.surface.programs import metrics_by_package
from tests.surface.sources import ROOT

PAGE = ROOT / "docs" / "metrics.md"
SECTION_BY_PACKAGE = {
    "coda_kube": "Of every part",
    "coda_extender": "Of the extender",
    "coda_operator": "Of the operator",
    "coda_agent": "Of the agent",
}
LABELS = "Labels, and what bounds them"
GROUPS = {
    "GPU": "gpu, UUID, pci_bus_id, device, modelName, hostname",
    "slice": "gpu, UUID, pci_bus_id, device, modelName, hostname, GPU_I_ID, GPU_I_PROFILE",
    "owner": "namespace, pod, container, pod_uid",
    "pod": "namespace, pod, pod_uid",
}


class Shown(NamedTuple):
    section: str
    name: str
    kind: str
    labels: str


def rows(section: str) -> Iterator[list[str]]:
    """The cells of the section's table, without its head."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_every_metric_is_documented_as_it_is() -> None:
    documented = {
        Shown(section, name.strip("`"), kind, labels_of(labels))
        for section in SECTION_BY_PACKAGE.values()
        for name, kind, labels, _says in rows(section)
    }
    coded = {shown_of(section, line) for package, section in SECTION_BY_PACKAGE.items() for line in lines_of(package)}
    assert set(metrics_by_package()) == set(SECTION_BY_PACKAGE)
    assert documented == coded


def test_every_label_is_documented_with_its_bound() -> None:
    coded = {label for package in SECTION_BY_PACKAGE for line in lines_of(package) for label in labels_in(line)}
    documented = [name.strip("`") for name, _values, _bound in rows(LABELS)]
    assert sorted(documented) == sorted(coded)


def lines_of(package: str) -> set[str]:
    return metrics_by_package()[package]


def labels_in(line: str) -> list[str]:
    """Of a line such as `coda_jobs GaugeMetricFamily labels phase`."""
    found = re.search(r" labels ([\w, ]+?)( buckets|$)", line)
    return found[1].split(", ") if found else []


def shown_of(section: str, line: str) -> Shown:
    name, constructor = line.split(" ")[:2]
    if constructor == "CounterMetricFamily":  # the client appends it
        name += "_total"
    return Shown(section, name, constructor.removesuffix("MetricFamily").lower(), ", ".join(labels_in(line)))


def labels_of(cell: str) -> str:
    """The labels that a cell names, with groups spelled out."""
    return ", ".join(GROUPS.get(word, word.strip("`")) for word in cell.split(", ")) if cell else ""
