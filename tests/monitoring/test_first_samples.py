"""Counters whose increase an alert asks for are there, and 0, before anything happens.

Prometheus takes nothing for an increase of what a series begins with: gangs that end together would be missed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import coda_extender.http
from coda_agent.report.metrics import Metrics as AgentMetrics
from coda_extender.metrics import Metrics as ExtenderMetrics
from coda_operator.metrics import CpuHistoryMetrics, HistoryMetrics
from coda_operator.metrics import Metrics as OperatorMetrics
from tests.monitoring.expressions import Json, alerts, kinds

INCREASE = re.compile(r"increase\((?P<name>\w+)(?:\{(?P<label>\w+)=~\"(?P<values>[^\"]*)\"\})?\[")


def first_samples() -> dict[str, list[dict[str, str]]]:
    """What every part shows after its start: labels by name."""
    extender, registry = ExtenderMetrics(), CollectorRegistry()
    OperatorMetrics(registry), HistoryMetrics(registry), AgentMetrics(registry, "n1")
    CpuHistoryMetrics(registry).show_waiting(lambda: 0, lambda: 0)
    found: dict[str, list[dict[str, str]]] = {}
    for text in (extender.text(), generate_latest(registry)):
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.mark.parametrize(
    "rule", [rule for rule in alerts() if "increase(" in rule["expr"]], ids=lambda rule: rule["alert"]
)
def test_what_an_alert_counts_begins_at_zero(rule: Json) -> None:
    shown = first_samples()
    for match in INCREASE.finditer(rule["expr"]):
        samples = shown.get(match["name"], [])
        assert samples
        if match["label"]:
            assert set(match["values"].split("|")) <= {labels[match["label"]] for labels in samples}


OPEN_LISTS = {
    "coda_operator_resizes_total",
    "coda_extender_answers_total",  # by verb and outcome
    "coda_agent_tuning_steps_total",
}
"""Counters whose labels are not a fixed list: a series begins with its first count."""


def test_every_counter_of_a_fixed_list_begins_at_zero() -> None:
    shown = first_samples()
    counters = {name for name, kind in kinds().items() if kind == "Counter"}
    assert {name for name in counters if name not in shown} == OPEN_LISTS


def test_every_way_to_refuse_a_request_begins_at_zero() -> None:
    sources = Path(coda_extender.http.__file__).parent.glob("*.py")
    refusals = {word for path in sources for word in re.findall(r"refused?\(\"(\w+)\"\)", path.read_text())}
    shown = first_samples()["coda_extender_refused_requests_total"]
    assert refusals == {labels["reason"] for labels in shown}


def test_every_increase_is_read() -> None:
    expressions = [rule["expr"] for rule in alerts()]
    assert sum(len(INCREASE.findall(one)) for one in expressions) == sum(one.count("increase(") for one in expressions)
