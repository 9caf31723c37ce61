"""What `coda doctor` says of GPU nodes without the labels of topology levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from coda_cli.doctor.finding import Level
from coda_cli.doctor.findings import findings
from coda_kube.objects.json_types import Json
from tests.cli.doctor.test_findings import WELL, node, told

RACK = "topology.coda.scheduler/rack"


def nodes_with(*names: str, without: tuple[str, ...] = (), taints: tuple[Json, ...] | None = None) -> list[Json]:
    """GPU nodes, and a node of CPUs that is in no rack; those of `without` are in none either."""
    found = [node(name) if taints is None else node(name, taints=taints) for name in names]
    found.append(node("cpu", gpus=0, taints=()))
    for one in found:
        if one["metadata"]["name"] in ("cpu", *without):
            del one["metadata"]["labels"][RACK]
    return found


@pytest.mark.parametrize(
    ("nodes", "settings", "expected"),
    [
        pytest.param(nodes_with("n1", "n2"), {}, "", id="all have it"),
        pytest.param(nodes_with("n1", without=("n1",)), {}, "", id="the only node"),
        pytest.param(
            nodes_with("n1", "n2", without=("n1", "n2")),
            {},
            f"all 2 GPU nodes lack the label {RACK}: no job with locality.required: rack runs there",
            id="none has it",
        ),
        pytest.param(
            nodes_with("n1", "n2", without=("n1", "n2"), taints=()),
            {},
            f"all 2 GPU nodes lack the label {RACK}: no job with locality.required: rack runs there",
            id="none of a shared pool",
        ),
        pytest.param(
            nodes_with("n1", "n2", "n3", without=("n1", "n3")),
            {},
            f"n1 and n3 of 3 GPU nodes lack the label {RACK}: no job with locality.required: rack runs there",
            id="some",
        ),
        pytest.param(
            nodes_with("n1", "n2"),
            {"CODA_TOPOLOGY_LEVELS": "block=topology.x/block,node=kubernetes.io/hostname"},
            "all 2 GPU nodes lack the label topology.x/block: no job with locality.required: block runs there",
            id="a level of the installation",
        ),
        pytest.param(nodes_with("n1", "n2", without=("n1",)), {"CODA_TOPOLOGY_LEVELS": ""}, "", id="no levels"),
    ],
)
def test_a_level_whose_label_gpu_nodes_lack_is_named(
    nodes: list[Json], settings: Mapping[str, str], expected: str
) -> None:
    seen = replace(WELL, nodes=nodes, extender_settings=settings)
    found = [one for one in told(seen) if one[1] == "topology"]
    assert found == ([(Level.NOTE, "topology", expected)] if expected else [])


def test_the_fix_labels_a_node() -> None:
    seen = replace(WELL, nodes=nodes_with("n1", "n2", without=("n1",)))
    (fix,) = [one.fix for one in findings(seen) if one.about == "topology"]
    assert fix.startswith(f"kubectl label node NODE {RACK}=")
    assert fix.endswith("or take the level out of topologyLevels in the chart")
