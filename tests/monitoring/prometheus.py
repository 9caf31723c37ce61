"""A real Prometheus beside a local cluster: it scrapes every part, as the chart's PodMonitor has it, and evaluates the
alerts."""

from __future__ import annotations

import math
import os
import random
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from coda_kube.objects.json_types import Json
from coda_lab.host import processes
from coda_lab.host.ports import LOOPBACK, free_ports
from coda_lab.local.cluster import LocalCluster, answers_ok
from coda_lab.spec import metrics_port_of
from tests.e2e.agents import wait_until
from tests.monitoring.expressions import ALERTS, program

_UNITS_S = {"s": 1, "m": 60, "h": 3600}


class Prometheus:
    """The program, and its answers."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def ask(self, path: str, **query: str) -> Any:
        """The data of an answer. Fails with what Prometheus says of a wrong expression."""
        async with self._session.get(f"{self._url}/api/v1/{path}", params=query) as response:
            answer = await response.json()
        assert answer["status"] == "success", f"{query}: {answer}"
        return answer["data"]

    async def rules(self) -> dict[str, Any]:
        """Every alert by name, as it was evaluated last."""
        groups = (await self.ask("rules"))["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    async def firing(self) -> set[str]:
        """The alerts that fire."""
        return {name for name, rule in (await self.rules()).items() if rule["state"] == "firing"}

    async def samples(self, expression: str) -> int:
        """How many samples an expression has now, not a number left out."""
        found = (await self.ask("query", query=expression))["result"]
        return sum(not math.isnan(float(one["value"][1])) for one in found)


@asynccontextmanager
async def prometheus_beside(
    cluster: LocalCluster, folder: Path, *, interval_s: int = 2, rules: str | None = None
) -> AsyncIterator[Prometheus]:
    """While the block lasts, it scrapes every `interval_s`. `rules`: instead of the chart's alerts as they are."""
    (port,) = free_ports(1, random.Random())
    alerts = folder / "alerts.yaml"
    alerts.write_text(ALERTS.read_text() if rules is None else rules)
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(configuration(cluster, alerts, interval_s)))
    argv = (
        str(program("prometheus")),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={LOOPBACK}:{port}",
    )
    process = processes.start(argv, environ=dict(os.environ), log=folder / "prometheus.log", folder=folder)
    try:
        url = f"http://{LOOPBACK}:{port}"
        await wait_until(lambda: answers_ok(f"{url}/-/ready"))
        async with aiohttp.ClientSession() as session:
            yield Prometheus(url, session)
    finally:
        process.signal(signal.SIGKILL)
        process.end_at_once()


def configuration(cluster: LocalCluster, alerts: Path, interval_s: int) -> Json:
    """One target for each part, with the labels that a PodMonitor gives it."""
    port_by_part = {name: cluster.ports.get(metrics_port_of(name), cluster.ports[name]) for name in parts(cluster)}
    targets = [
        {
            "targets": [f"{LOOPBACK}:{port}"],
            "labels": {
                "namespace": "coda-system",
                "pod": f"coda-{name}",
                "container": name.partition("-")[0],
                "node": f"node-{int(name.partition('-')[2]):04}",
            },
        }
        for name, port in port_by_part.items()
    ]
    every = f"{interval_s}s"
    judged = f"{min(interval_s, 2)}s"
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": judged},
        "rule_files": [str(alerts)],
        "scrape_configs": [{"job_name": "coda", "honor_labels": True, "static_configs": targets}],
    }


def parts(cluster: LocalCluster) -> list[str]:
    """Every part that has metrics."""
    return [name for name in cluster.spec.names if name.startswith(("extender-", "operator-", "agent-"))]


def in_less_time(rules: str, times: int, *, windows: bool = True) -> str:
    """The alerts with every `for` divided by `times`, and with `windows` every window; thresholds stay as they are."""

    def shorter(match: re.Match[str]) -> str:
        seconds = int(match["number"]) * _UNITS_S[match["unit"]] / times
        return f"{match['before']}{max(1, round(seconds))}s{match['after']}"

    before = r"for: |\[" if windows else "for: "
    return re.sub(
        rf"(?P<before>{before})(?P<number>\d+)(?P<unit>[smh])(?P<after>\]|$)", shorter, rules, flags=re.MULTILINE
    )
