"""`python -m tests.monitoring.pictures` draws every dashboard into docs/pictures and writes docs/dashboards.md.

`coda demo` tells its story, and accidents follow. A real Prometheus scrapes the parts every second. The window of rates
is half a minute, so that some minutes have lines. It fails if an expression of a panel found nothing. Afterwards
somebody looks at the pictures.
"""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from coda_cli.demo.story import Story
from coda_cli.demo.story_command import WINDOW_S, wait_for_rounds
from coda_cli.demo.story_objects import CPU_JOBS, NODES, TRAINING
from coda_kube.api.client import Client
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec
from deploy.dashboards.__main__ import BOARDS
from deploy.dashboards.drawing import Series, draw
from deploy.dashboards.page import page_of
from tests.e2e.agents import wait_until
from tests.e2e.jobs import job_json, submit
from tests.monitoring import accidents
from tests.monitoring.breaking import Scene
from tests.monitoring.expressions import plain
from tests.monitoring.prometheus import Prometheus, parts, prometheus_beside
from tests.surface.sources import ROOT

PICTURES = ROOT / "docs" / "pictures" / "dashboards"
PAGE = ROOT / "docs" / "dashboards.md"
TENANTS = {"research": (TRAINING, 12, 60), "services": (CPU_JOBS, 4, 36)}
STEP_S = 2
RATE = "30s"


async def main() -> None:
    """Tell the story, ask, and draw."""
    spec = ClusterSpec(
        nodes=NODES,
        racks=1,
        extenders=2,
        agents=2,
        agent_window_s=WINDOW_S,
        environ_by_part={f"extender-{one}": {"CODA_FAIR_SHARE_MIN_RUNTIME_S": "1"} for one in range(2)},
    )
    with tempfile.TemporaryDirectory() as folder:
        async with (
            running_cluster(spec, tell=print) as cluster,
            cluster.client("user") as user,
            cluster.client("admin") as admin,
            prometheus_beside(cluster, Path(folder), interval_s=1) as prometheus,
        ):
            await wait_until(lambda: all_are_up(prometheus, len(parts(cluster))))
            began_s = time.time()
            for name, (namespace, gpus, cpus) in TENANTS.items():
                tenant = {"namespaces": [namespace], "quota": {"gpus": gpus, "cpus": cpus}}
                kind = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "VirtualCluster", "metadata": {"name": name}}
                await admin.create("/apis/coda.scheduler/v1alpha1/virtualclusters", kind | {"spec": tenant})
            story = Story(
                user,
                admin,
                tell,
                partial(wait_for_rounds, cluster),
                with_agents=True,
            )
            short = asyncio.create_task(submit_short_jobs(user))
            await story.tell()
            short.cancel()
            assert story.untold == []
            await accidents.all_happen(Scene(cluster=cluster, user=user, admin=admin), prometheus)
            found = {expr: await series_of(prometheus, expr, began_s) for board in BOARDS for expr in board.expressions}
            for board in BOARDS:
                draw(board, found, PICTURES / f"{board.uid}.svg")
            samples = {expr: sum(len(one.points) for one in series) for expr, series in found.items()}
            PAGE.write_text(page_of(BOARDS, samples), encoding="utf-8")
            assert [expr for expr, count in samples.items() if not count] == []


def tell(title: str, sentences: Sequence[str]) -> None:
    sys.stdout.write(f"{title}: {' '.join(sentences)}\n")


async def all_are_up(prometheus: Prometheus, count: int) -> bool:
    return await prometheus.samples("up == 1") == count


async def submit_short_jobs(user: Client) -> None:
    """Beside the story: jobs that come and go."""
    number = 0
    while True:
        await submit(user, job_json(f"short-{number}", run_s=6.0))
        number += 1
        await asyncio.sleep(4)


async def series_of(prometheus: Prometheus, expr: str, began_s: float) -> list[Series]:
    """The values of an expression since then, in seconds since then."""
    asked = plain(expr.replace("$__rate_interval", RATE))
    now_s = time.time()
    answer = await prometheus.ask("query_range", query=asked, start=str(began_s), end=str(now_s), step=str(STEP_S))
    return [
        Series(
            labels=one["metric"],
            points=[(at_s - began_s, float(value)) for at_s, value in one["values"] if not math.isnan(float(value))],
        )
        for one in answer["result"]
    ]


if __name__ == "__main__":
    asyncio.run(main())
