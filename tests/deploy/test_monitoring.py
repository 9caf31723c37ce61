"""What the chart gives to Prometheus and Grafana."""

from __future__ import annotations

import pytest
import yaml

from tests.deploy.charts import Helm, container_of, environ_of, find, pod_of
from tests.monitoring.expressions import ALERTS, DASHBOARDS

pytestmark = pytest.mark.e2e


def test_prometheus_finds_the_metrics_in_either_way(helm: Helm) -> None:
    items = helm.render("metrics.podMonitor.enabled=true", "metrics.podMonitor.labels.release=prometheus")
    for part, port in (("operator", "9090"), ("extender", "9091")):
        notes = pod_of(items, part)["metadata"]["annotations"]
        assert notes == {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": port,
            "prometheus.io/path": "/metrics",
        }
    monitor = find(items, "PodMonitor", "coda")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"]
    secret = find(items, "Secret", endpoint["authorization"]["credentials"]["name"])
    assert secret["type"] == "kubernetes.io/service-account-token"
    account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    bound = find(items, "ClusterRoleBinding", "coda-metrics-reader")["subjects"]
    assert bound == [{"kind": "ServiceAccount", "name": account, "namespace": "coda-system"}]
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}]
    for part, number in (("operator", 9090), ("extender", 9091)):
        by_name = {entry["name"]: entry["containerPort"] for entry in container_of(items, part)["ports"]}
        assert by_name[endpoint["port"]] == number
    without = helm.render("metrics.annotations=false")
    assert "annotations" not in pod_of(without, "operator")["metadata"]


def test_metrics_are_open_if_they_are_meant_to_be(helm: Helm) -> None:
    items = helm.render("metrics.protected=false", "metrics.podMonitor.enabled=true")
    assert environ_of(items, "operator")["CODA_METRICS_ACCESS"] == "open"
    assert "authorization" not in find(items, "PodMonitor", "coda")["spec"]["podMetricsEndpoints"][0]
    assert not [item for item in items if item["metadata"]["name"].startswith("coda-metrics")]


def test_a_prometheus_that_is_named_may_read(helm: Helm) -> None:
    reader = "metrics.readers[0].kind=ServiceAccount,metrics.readers[0].name=p,metrics.readers[0].namespace=m"
    items = helm.render(reader)
    (bound,) = find(items, "ClusterRoleBinding", "coda-metrics-reader")["subjects"]
    assert bound == {"kind": "ServiceAccount", "name": "p", "namespace": "m"}
    reviewers = find(items, "ClusterRoleBinding", "coda-metrics-reviewers")["subjects"]
    assert [each["name"] for each in reviewers] == ["coda-operator", "coda-extender", "coda-agent"]


def test_the_alerts_are_installed_if_they_are_wanted(helm: Helm) -> None:
    assert not [item for item in helm.render() if item["kind"] == "PrometheusRule"]
    wanted = ("enabled=true", "labels.release=prometheus", "runbooks=https://wiki.example.com/coda/")
    rule = find(helm.render(*(f"metrics.prometheusRule.{value}" for value in wanted)), "PrometheusRule", "coda")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    text = ALERTS.read_text().replace("docs/runbooks/", "https://wiki.example.com/coda/")
    assert rule["spec"] == yaml.safe_load(text)


def test_the_dashboards_are_installed_if_they_are_wanted(helm: Helm) -> None:
    assert not [item for item in helm.render() if item["metadata"]["name"].endswith("-dashboard")]
    items = helm.render("metrics.dashboards.enabled=true")
    found = [item for item in items if item["metadata"]["name"].endswith("-dashboard")]
    assert {item["metadata"]["labels"]["grafana_dashboard"] for item in found} == {"1"}
    shown = {name: text for item in found for name, text in item["data"].items()}
    assert shown == {path.name: path.read_text() for path in DASHBOARDS.glob("*.json")}
