"""The recipe for autoscalers in docs/installing.md fits Coda: its names, its taint, and pods that give nodes back."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from coda.model.constraints import Taint
from coda.nodes import tolerates
from coda_kube.objects.names import GPU, SCHEDULER
from coda_kube.objects.pods.node_terms import constraints_from_json
from tests.docs.blocks import ROOT, blocks

POOL = Taint(key="coda.scheduler/pool", value="true", effect="NoSchedule")


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    """Its objects by kind."""
    texts = [block.text for block in blocks() if block.page == "docs/installing.md" and block.language == "yaml"]
    return {item["kind"]: item for text in texts for item in yaml.safe_load_all(text)}


def test_a_placeholder_asks_for_a_node_of_the_pool_through_codas_scheduler(recipe: dict[str, Any]) -> None:
    spec = recipe["ScaledJob"]["spec"]
    pod = spec["jobTargetRef"]["template"]["spec"]
    (container,) = pod["containers"]
    (trigger,) = spec["triggers"]
    assert pod["schedulerName"] == SCHEDULER
    assert str(container["resources"]["limits"][GPU]) == trigger["metadata"]["threshold"]
    assert tolerates(constraints_from_json(pod, ()).tolerations, POOL)
    assert POOL.key in recipe["Namespace"]["metadata"]["labels"]
    assert recipe["Namespace"]["metadata"]["name"] == recipe["ScaledJob"]["metadata"]["namespace"]
    metric = trigger["metadata"]["query"].removeprefix("max(").removesuffix(")")
    assert f"| `{metric}` | gauge |" in (ROOT / "docs/metrics.md").read_text()


def test_a_placeholder_ends_as_soon_as_it_runs_and_does_not_wait_for_ever(recipe: dict[str, Any]) -> None:
    job = recipe["ScaledJob"]["spec"]["jobTargetRef"]
    pod = job["template"]["spec"]
    assert [container["command"] for container in pod["containers"]] == [["true"]]
    assert (pod["restartPolicy"], job["backoffLimit"]) == ("Never", 0)
    assert 0 < job["activeDeadlineSeconds"] <= 1800
    assert job["ttlSecondsAfterFinished"] <= 300


def test_nodes_join_with_the_taint_and_stay_while_the_rest_of_a_gang_is_awaited(recipe: dict[str, Any]) -> None:
    pool = recipe["NodePool"]
    taint = {"key": POOL.key, "value": POOL.value, "effect": POOL.effect}
    assert taint in pool["spec"]["template"]["spec"]["taints"]
    assert pool["spec"]["disruption"] == {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1h"}
    selector = recipe["ScaledJob"]["spec"]["jobTargetRef"]["template"]["spec"]["nodeSelector"]
    assert selector == {"karpenter.sh/nodepool": pool["metadata"]["name"]}
