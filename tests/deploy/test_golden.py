"""What Helm makes of six installations, as files to be read in a review.

`defaults.yaml` is whole; the others are differences from it. Left out is what other tests compare with its source:
policies, definitions, alerts and dashboards.
"""

from __future__ import annotations

import difflib

import pytest
import yaml

from coda_lab.host.paths import chart
from tests.deploy.charts import NAMESPACE, Helm, Json
from tests.deploy.golden import compare_with_golden
from tests.deploy.value_sets import VALUE_SETS

pytestmark = pytest.mark.e2e

ELSEWHERE = ("AdmissionPolicy", "AdmissionPolicyBinding")
LONG = ("data", "spec")


def rendered(helm: Helm, name: str) -> list[str]:
    """The lines of an installation, objects by kind and name."""
    items = sorted(helm.render(*VALUE_SETS[name]), key=lambda item: (item["kind"], item["metadata"]["name"]))
    shown = [shortened(item) for item in items if not item["kind"].endswith(ELSEWHERE)]
    return yaml.safe_dump_all(shown, sort_keys=True, width=120).splitlines()


def shortened(item: Json) -> Json:
    is_copy = item["kind"] == "PrometheusRule" or item["metadata"]["name"].endswith(("-dashboard", "coda-definitions"))
    return {key: "..." if is_copy and key in LONG else value for key, value in item.items()}


@pytest.mark.parametrize("name", VALUE_SETS)
def test_an_installation_is_made_of_what_was_reviewed(helm: Helm, name: str) -> None:
    lines = rendered(helm, name)
    file = f"{name.replace(' ', '-')}.{'yaml' if name == 'defaults' else 'diff'}"
    if name != "defaults":
        lines = list(difflib.unified_diff(rendered(helm, "defaults"), lines, "defaults", name, lineterm="", n=2))
    compare_with_golden(file, lines)


@pytest.mark.parametrize("name", VALUE_SETS)
def test_it_lints(helm: Helm, name: str) -> None:
    sets = [word for value in VALUE_SETS[name] for word in ("--set", value)]
    ended = helm.run("lint", str(chart()), "--strict", "--namespace", NAMESPACE, *sets)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("name", VALUE_SETS)
def test_no_container_has_more_than_it_needs(helm: Helm, name: str) -> None:
    """The agent's exceptions are said in its values (`agent.securityContext`)."""
    for item in helm.render(*VALUE_SETS[name]):
        spec = item.get("spec", {}).get("template", {}).get("spec", {})
        for container in spec.get("containers", ()):
            context = spec.get("securityContext", {}) | container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert context["capabilities"]["drop"] == ["ALL"]
            if container["name"] == "agent":
                assert context["privileged"] is False
                assert context["capabilities"]["add"] == ["SYS_ADMIN"]
                continue
            assert context["runAsNonRoot"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert "add" not in context["capabilities"]
