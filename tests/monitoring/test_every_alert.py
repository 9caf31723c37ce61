"""Every alert fires once what it watches is really broken, and ends once that is mended, on a real Prometheus.

The rules are the chart's: expressions, windows and thresholds. Only each `for` is a thirtieth. One control plane serves
all of them, so this takes twenty minutes on a busy machine, and only `make verify` runs it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from coda_lab.experiments.chaos.proxy import Gate
from coda_lab.experiments.chaos.schedule import Kind
from coda_lab.host.ports import LOOPBACK, free_ports
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec
from tests.e2e.agents import training, wait_until
from tests.e2e.jobs import submit, wait_for_phase
from tests.lengths import LONG
from tests.monitoring import breaking, refusing, starving
from tests.monitoring.breaking import Breaking, Scene
from tests.monitoring.expressions import ALERTS, alerts
from tests.monitoring.prometheus import Prometheus, in_less_time, parts, prometheus_beside

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(7200),  # a busy machine takes several times as long
    pytest.mark.skipif(not LONG, reason="takes twenty minutes: CODA_LONG=1"),
]

log = logging.getLogger(__name__)

TIMES = 30
SCRAPED_EVERY_S = 10  # and so long a scrape may take, as by default: what is starved answers late
CUT_OFF, ITS_NODE = "agent-1", "node-0001"
OF_THE_NETWORK = ("CodaWatchBroken", "CodaAgentOutOfTouch")
"""These fire while one agent does not reach the API server: for five minutes, beside all the others."""

BREAKING: dict[str, Breaking] = {
    # Quantiles and shares of ten minutes or more: what went well before counts against them, so they come first.
    "CodaAgentSlow": starving.agent_starves,
    "CodaPlannerSlow": starving.planner_starves,
    "CodaReasonsLate": starving.planner_hangs,
    "CodaExtenderErrors": refusing.label_at_a_follower,
    "CodaExtenderUnreached": refusing.another_authority,
    "CodaReconcileErrors": refusing.pods_refused,
    "CodaFilterSlow": starving.extender_starves,
    "CodaPlannerProcessLost": breaking.planner_process_dies,
    "CodaRestarts": breaking.extenders_killed_in_turn,
    "CodaPlannerErrors": starving.no_planner_process_lives,
    "CodaPlannerAbsent": breaking.no_planner,
    "CodaJobsLeftOut": refusing.planner_may_not_write,
    "CodaObjectsUnreadable": refusing.definition_loosened,
    "CodaHistoryAway": refusing.history_locked,
    "CodaHistoryLost": breaking.history_refuses,
    "CodaNotScraped": starving.agent_stopped,
    "CodaGpuUnmeasured": starving.driver_hangs,
    "CodaAgentWritesFail": refusing.agents_may_not_write,
    "CodaJobsStuck": refusing.operator_may_not_write,
    "CodaGangsDoNotStart": starving.nobody_binds,
    "CodaOperatorAbsent": starving.no_operator,
    "CodaNodeLossSuspended": starving.kubelets_gone,
    "CodaCertificateEnds": refusing.certificate_not_renewed,
}
WITHIN_S = 900.0  # ten minutes of them are a threshold of CodaJobsStuck
END_AT_ONCE = {rule["alert"] for rule in alerts() if "[" not in rule["expr"]}
"""Those without a window: they end when what they watch is mended."""


def test_every_alert_is_broken() -> None:
    assert {*BREAKING, *OF_THE_NETWORK} == {rule["alert"] for rule in alerts()}


@pytest.fixture
async def gate() -> AsyncIterator[tuple[Gate, ClusterSpec]]:
    """The way of one agent to the API server, and a cluster in which it goes through it."""
    api_port, port = free_ports(2, random.Random())
    spec = ClusterSpec(
        nodes="4x8x32",
        racks=1,
        extenders=2,
        agents=2,
        agent_window_s=1.0,
        api_port=api_port,
        environ_by_part={name: {"CODA_CONTENTION_WINDOW_S": "1"} for name in ("agent-0", CUT_OFF)},  # the default
        server_by_part={CUT_OFF: f"https://{LOOPBACK}:{port}"},
    )
    async with Gate.opened(port, api_port) as opened:
        yield opened, spec


async def test_each_alert_fires_when_what_it_watches_is_broken(gate: tuple[Gate, ClusterSpec], tmp_path: Path) -> None:
    rules = in_less_time(ALERTS.read_text(), TIMES, windows=False)
    async with (
        running_cluster(gate[1], tell=print) as cluster,
        prometheus_beside(cluster, tmp_path, interval_s=SCRAPED_EVERY_S, rules=rules) as prometheus,
        cluster.client("user") as user,
        cluster.client("admin") as admin,
    ):
        await wait_until(lambda: all_are_up(prometheus, len(parts(cluster))))
        running = await submit(user, training("runs", cores_needed=4, node="node-0000"))
        await wait_for_phase(user, running, "Running")
        await asyncio.sleep(2 * SCRAPED_EVERY_S)
        assert await prometheus.firing() == set()
        scene = Scene(cluster=cluster, user=user, admin=admin)
        gate[0].cut(Kind.DROP)
        failed = [
            why for name, broken in BREAKING.items() if (why := await failure_of(broken, name, scene, prometheus))
        ]
        for name in OF_THE_NETWORK:
            await wait_until(partial(fires, prometheus, name, is_cut_off=True), within_s=WITHIN_S)
        gate[0].heal()
        for name in OF_THE_NETWORK:
            await wait_until(partial(is_calm, prometheus, name, is_cut_off=True), within_s=WITHIN_S)
        assert failed == []


async def failure_of(broken: Breaking, name: str, scene: Scene, prometheus: Prometheus) -> str:
    """Why this one failed, or nothing: the others are tried all the same."""
    try:
        await fires_while(broken, name, scene, prometheus)
    except AssertionError as error:
        log.warning("%s: %s", name, error)
        return f"{name}: {error}"
    return ""


async def fires_while(broken: Breaking, name: str, scene: Scene, prometheus: Prometheus) -> None:
    """Not before, and where it has no window not afterwards."""
    assert not await fires(prometheus, name), "it fires too early"
    began_s, before = time.monotonic(), await prometheus.firing()
    async with broken(scene):
        await wait_until(lambda: fires(prometheus, name), within_s=WITHIN_S)
    beside = sorted(await prometheus.firing() - before - {name})
    log.info("%s fired after %.0f s; beside it: %s", name, time.monotonic() - began_s, beside)
    await scene.clear()
    if name in END_AT_ONCE:
        await wait_until(lambda: is_calm(prometheus, name), within_s=WITHIN_S)


async def all_are_up(prometheus: Prometheus, count: int) -> bool:
    return await prometheus.samples("up == 1") == count


async def fires(prometheus: Prometheus, name: str, *, is_cut_off: bool = False) -> bool:
    """Whether this alert fires now: about the node that is cut off, or about anything else."""
    where = f'node{"=" if is_cut_off else "!="}"{ITS_NODE}"'
    return await prometheus.samples(f'ALERTS{{alertname="{name}",alertstate="firing",{where}}}') > 0


async def is_calm(prometheus: Prometheus, name: str, *, is_cut_off: bool = False) -> bool:
    return not await fires(prometheus, name, is_cut_off=is_cut_off)
