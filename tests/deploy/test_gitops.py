"""What a GitOps tool makes of the chart: it renders without a cluster, or as a part of another chart."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from coda_lab.host.paths import chart
from tests.deploy.charts import NAMESPACE, Helm, Json, container_of

pytestmark = pytest.mark.e2e

SERVED = ["-a", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "installing.md"


def mutating(items: list[Json]) -> int:
    return sum(item["kind"] == "MutatingAdmissionPolicy" for item in items)


def test_the_page_says_what_the_version_of_the_cluster_does_not_bring(helm: Helm) -> None:
    assert mutating(helm.render(kube="v1.36.0")) == 0
    assert mutating(helm.render(more=SERVED)) == mutating(helm.render("cpuJobs.enabled=true")) == 4
    said = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert "`cpuJobs.enabled=true`" in said
    assert f"`{' '.join(SERVED)}`" in said


def test_the_page_says_what_argo_cd_tells_helm(helm: Helm) -> None:
    """It passes all that the API server serves; its older releases leave the patch number out of the version."""
    items = helm.render(kube="1.36", more=SERVED)
    assert mutating(items) == 4
    assert container_of(items, "scheduler")["image"].endswith(":v1.36.0")
    said = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert "Argo CD names to Helm what the API servers serve" in said
    assert "CPU jobs are on there without a value" in said
    assert "`v1.36.0`" in said


def test_it_may_be_a_conditional_part_of_another_chart(helm: Helm, tmp_path: Path) -> None:
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "coda").symlink_to(chart())
    part = {"name": "coda", "version": "*", "repository": "", "condition": "coda.enabled"}
    described = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [part]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(described))

    def rendered(enabled: str) -> int:
        kube = ("--kube-version", "v1.36.0", "--set", f"coda.enabled={enabled}")
        ended = helm.run("template", "platform", str(tmp_path), "--namespace", NAMESPACE, *kube)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.count("kind: Deployment")

    assert (rendered("true"), rendered("false")) == (3, 0)
