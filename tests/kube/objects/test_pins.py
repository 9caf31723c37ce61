"""Which node a gang's pod is pinned to, for any affinity of the user beside the pin."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.objects.pods.node_terms import pinned
from coda_kube.objects.read import pod_from_json
from tests.extender.objects import pod_json

PIN = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
OTHER = {"key": "metadata.name", "operator": "NotIn", "values": ["n3"]}
ANOTHER = {"key": "metadata.name", "operator": "In", "values": ["n2"]}
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
        pytest.param([{"matchFields": [PIN, PIN]}], "n1", id="the user names the same node"),
        pytest.param([{"matchFields": [PIN]}, {"matchFields": [ANOTHER, PIN]}], "n1", id="the user names two nodes"),
        pytest.param([{"matchFields": [ANOTHER, PIN]}], None, id="the user names another node"),
        pytest.param([{}, {"matchExpressions": [LABEL], "matchFields": [PIN]}], "n1", id="an empty term selects none"),
        pytest.param([{}], None, id="only an empty term"),
        pytest.param([], None, id="no terms"),
    ],
)
def test_a_pod_is_pinned_where_every_term_leaves_one_node(terms: list[Any], node: str | None) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod = pod_json("rank", spec={"affinity": {"nodeAffinity": required}})
    assert pod_from_json(pod).pinned_to == node


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param([], id="none"),
        pytest.param([{"matchFields": [PIN]}], id="one that names the node"),
        pytest.param([{"matchFields": [ANOTHER]}, {"matchFields": [PIN]}], id="two that name nodes"),
        pytest.param([{}, {"matchExpressions": [LABEL]}], id="an empty one"),
    ],
)
def test_what_was_pinned_reads_back(terms: list[Any]) -> None:
    """Else nobody could bind the pod, and it would be evicted and made again for ever."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    affinity = pinned({"nodeAffinity": required} if terms else {}, "n1")
    pod = pod_json("rank", spec={"affinity": affinity})
    assert pod_from_json(pod).pinned_to == "n1"
    after = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term for term in after if not term] == [term for term in terms if not term], "it selects nothing still"
