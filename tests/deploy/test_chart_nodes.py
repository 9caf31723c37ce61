"""Which nodes the chart's pods go to: Linux nodes that have a kubelet."""

from __future__ import annotations

import pytest

from tests.deploy.charts import Helm, Json

pytestmark = pytest.mark.e2e

LINUX = {"kubernetes.io/os": "linux"}
MINE = ("nodeSelector.pool=system", "agent.nodeSelector.gpu=yes")
ELSEWHERE = ("nodeSelector.kubernetes\\.io/os=other", "agent.nodeSelector.kubernetes\\.io/os=other")


def selectors(helm: Helm, *values: str) -> dict[str, Json]:
    """The node selector of every pod that the chart makes, by kind and name of what makes it."""
    made = [item for item in helm.render(*values) if item.get("spec", {}).get("template", {}).get("spec")]
    return {
        f"{item['kind']} {item['metadata']['name']}": item["spec"]["template"]["spec"].get("nodeSelector", {})
        for item in made
    }


def test_every_pod_goes_to_a_linux_node(helm: Helm) -> None:
    found = selectors(helm)
    parts = {f"Deployment coda-{part}" for part in ("operator", "extender", "scheduler")}
    assert found.keys() == parts | {"DaemonSet coda-agent", "Job coda-definitions", "Job coda-uninstall"}
    assert all(selector == LINUX for selector in found.values())


def test_what_a_user_selects_is_added_and_wins(helm: Helm) -> None:
    for name, selector in selectors(helm, *MINE).items():
        assert selector == LINUX | ({"gpu": "yes"} if name == "DaemonSet coda-agent" else {"pool": "system"})
    assert all(selector == {"kubernetes.io/os": "other"} for selector in selectors(helm, *ELSEWHERE).values())
