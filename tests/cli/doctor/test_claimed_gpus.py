"""What `coda doctor` says of GPUs that come by dynamic resource allocation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coda_cli.doctor.finding import Level
from coda_kube.objects.json_types import Json
from tests.cli.doctor.test_findings import WELL, node, told


def slice_of(name: str, driver: str = "gpu.nvidia.com") -> Json:
    return {"metadata": {"name": f"{name}-x"}, "spec": {"driver": driver, "nodeName": name}}


def said(which: str) -> str:
    return f"{which} by DRA alone (driver gpu.nvidia.com) and no nvidia.com/gpu: no TrainingJob starts there"


BARE = [node(f"n{number}", gpus=0) for number in (1, 2)]
SHARED: Json = {"metadata": {"name": "net"}, "spec": {"driver": "gpu.nvidia.com", "allNodes": True}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"nodes": BARE, "resource_slices": [slice_of("n1"), slice_of("n2"), slice_of("n2")]},
            [(Level.BAD, "GPU nodes", said("n1 and n2 have their GPUs"))],
            id="all",
        ),
        pytest.param(
            {"nodes": [node("n1"), BARE[1]], "resource_slices": [slice_of("n2")]},
            [(Level.NOTE, "GPU nodes", said("n2 has its GPUs"))],
            id="beside nodes with a plugin",
        ),
        pytest.param({"nodes": [node("n1")], "resource_slices": [slice_of("n1")]}, [], id="the plugin offers them"),
        pytest.param({"nodes": BARE, "resource_slices": [slice_of("n1", "dra.cpu")]}, [], id="other devices"),
        pytest.param({"nodes": BARE, "resource_slices": [SHARED, slice_of("gone")]}, [], id="of no node"),
        pytest.param({"nodes": BARE, "resource_slices": None}, [], id="hidden"),
        pytest.param({"nodes": None, "resource_slices": [slice_of("n1")]}, [], id="hidden nodes"),
    ],
)
def test_nodes_whose_gpus_the_planner_does_not_see_are_named(
    changes: dict[str, Any], expected: list[tuple[Level, str, str]]
) -> None:
    assert [one for one in told(replace(WELL, **changes)) if "DRA" in one[2]] == expected
