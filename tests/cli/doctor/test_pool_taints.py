"""What `coda doctor` says of taints that keep CPU jobs off GPU nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from coda_cli.doctor.finding import Level
from coda_cli.doctor.findings import findings
from coda_kube.objects.json_types import Json
from tests.cli.doctor.test_findings import TAINT, WELL, node, told

NVIDIA = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
SKU = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}
BUSY = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
SOFT = SKU | {"effect": "PreferNoSchedule"}
CPU = node("cpu", gpus=0, taints=())


def nodes_of(*taints: tuple[Json, ...]) -> list[Json]:
    return [CPU, *(node(f"n{number}", taints=mine) for number, mine in enumerate(taints, 1))]


@pytest.mark.parametrize(
    ("nodes", "settings", "keys"),
    [
        pytest.param(nodes_of((TAINT, NVIDIA), (TAINT, NVIDIA)), {}, "", id="NVIDIA's by default"),
        pytest.param(nodes_of((TAINT, SKU), (TAINT, NVIDIA, SKU)), {}, "sku", id="another"),
        pytest.param(nodes_of((TAINT, SKU), (TAINT,)), {}, "", id="one node has none"),
        pytest.param(nodes_of((TAINT, SKU), (TAINT, SKU)), {"CODA_POOL_TAINTS": "sku"}, "", id="told of it"),
        pytest.param(
            nodes_of((TAINT, NVIDIA), (TAINT, SKU)), {"CODA_POOL_TAINTS": ""}, "nvidia.com/gpu and sku", id="two"
        ),
        pytest.param(nodes_of((NVIDIA, SKU), (SKU,)), {}, "sku", id="a shared pool"),
        pytest.param(nodes_of((TAINT, BUSY), (TAINT, SOFT)), {}, "", id="what passes, and what is a wish"),
    ],
)
def test_a_taint_of_all_gpu_nodes_is_named(nodes: list[Json], settings: Mapping[str, str], keys: str) -> None:
    says = f"every GPU node of the pool (2) has a taint that they do not tolerate: {keys}"
    seen = replace(WELL, nodes=nodes, operator_settings=settings)
    found = [one for one in told(seen) if one[1] == "CPU jobs"]
    assert found == ([(Level.NOTE, "CPU jobs", says)] if keys else [])


def test_the_fix_keeps_what_is_tolerated_now() -> None:
    seen = replace(WELL, nodes=nodes_of((TAINT, SKU)), profiles=None)
    (fix,) = [one.fix for one in findings(seen) if one.about == "CPU jobs" and one.level is Level.NOTE]
    assert fix == "in the chart: --set 'pool.taints={nvidia.com/gpu,sku}'"


def test_where_nobody_opted_in_nothing_is_kept_out() -> None:
    found = told(replace(WELL, nodes=nodes_of((TAINT, SKU), (TAINT, SKU)), namespaces=[]))
    assert found == [(Level.NOTE, "CPU jobs", "no namespace takes part")]
