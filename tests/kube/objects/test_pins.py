"""Which node a gang's pod is pinned to, for any affinity of the user beside the pin."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.objects.read import pod_from_json
from tests.extender.objects import pod_json

PIN = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
OTHER = {"key": "metadata.name", "operator": "NotIn", "values": ["n3"]}
LABEL = {"key": "zone", "operator": "In", "values": ["n2"]}


@pytest.mark.parametrize(
    ("terms", "node"),
    [
        pytest.param([{"matchFields": [PIN]}], "n1", id="the pin alone"),
        pytest.param([{"matchFields": [PIN]}, {"matchExpressions": [LABEL], "matchFields": [PIN]}], "n1", id="in each"),
        pytest.param([{"matchFields": [OTHER, PIN]}], "n1", id="beside a name the user excludes"),
        pytest.param([{"matchFields": [OTHER]}], None, id="an excluded name is none"),
        pytest.param([{"matchFields": [PIN]}, {"matchExpressions": [LABEL]}], None, id="a term without it"),
        pytest.param([{"matchFields": [PIN]}, {"matchFields": [OTHER]}], None, id="a term that excludes one"),
        pytest.param([], None, id="no terms"),
    ],
)
def test_a_pod_is_pinned_where_every_term_leaves_one_node(terms: list[Any], node: str | None) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod = pod_json("rank", spec={"affinity": {"nodeAffinity": required}})
    assert pod_from_json(pod).pinned_to == node
