"""The chart's alerts and dashboards, and which metrics an expression of PromQL names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from coda_lab.host.paths import Settings, chart
from coda_lab.programs import prometheus
from tests.rigs import need
from tests.surface.programs import metrics

ALERTS = chart() / "monitoring" / "alerts.yaml"
DASHBOARDS = chart() / "monitoring" / "dashboards"
Json = dict[str, Any]


def alerts() -> list[Json]:
    """Every rule of the file."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def metrics_in(expression: str) -> set[str]:
    """The metrics that an expression names, without what a histogram or a counter's client appends."""
    return {known_name(name) for name in re.findall(r"\bcoda_\w+", expression)}


@cache
def kinds() -> dict[str, str]:
    """What makes each metric in the code: Counter, GaugeMetricFamily and so on, by its name there."""
    return {name: kind for name, kind, *_ in (line.split(" ") for line in metrics())}


def known_name(sample: str) -> str:
    """The name in the code for the name of a sample; the sample's own where the code has none."""
    kind_by_name = kinds()
    base = re.sub(r"_(bucket|sum|count)$", "", sample)
    if kind_by_name.get(base) == "Histogram":
        return base
    if kind_by_name.get(sample.removesuffix("_total")) == "CounterMetricFamily":
        return sample.removesuffix("_total")
    return sample


def program(name: str) -> Path:
    """`prometheus` or `promtool`. The test is skipped where there is none, or fails where rigs are required."""
    folder = prometheus.find(Settings.from_environ())
    need(folder is not None, "Prometheus (make prometheus)")
    assert folder is not None
    return folder / name


def plain(expression: str) -> str:
    """The expression with values for Grafana's variables: a window of five minutes, and all there is to choose from."""
    return re.sub(r"\$[a-z]+", ".*", expression.replace("$__rate_interval", "5m"))
