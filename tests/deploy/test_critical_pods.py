"""The ResourceQuota of docs/installing.md for clusters that keep system- classes to namespaces with one (GKE)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy.charts import NAMESPACE, Helm
from tests.docs.blocks import blocks

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def quota() -> dict[str, Any]:
    texts = [block.text for block in blocks() if block.page == "docs/installing.md" and block.language == "yaml"]
    (found,) = (item for text in texts for item in yaml.safe_load_all(text) if item["kind"] == "ResourceQuota")
    return dict(found)


def test_the_quota_of_the_page_admits_every_pod_of_the_chart(helm: Helm, quota: dict[str, Any]) -> None:
    pods = [spec for item in helm.render() if (spec := item.get("spec", {}).get("template", {}).get("spec"))]
    assert len(pods) == 6  # hooks too: Helm waits for them first
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert (scope["scopeName"], scope["operator"]) == ("PriorityClass", "In")
    assert set(scope["values"]) == {pod["priorityClassName"] for pod in pods}
    assert quota["spec"]["hard"].keys() == {"pods"}, "it limits nothing else, so pods need no limits for it"
    assert quota["metadata"]["namespace"] == NAMESPACE
