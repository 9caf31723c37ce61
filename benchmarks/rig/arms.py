"""One cluster, two arms: with Coda and its extender, and as if there were no Coda. A third has Coda without TLS.

Same control plane, nodes and simulated kubelets; kube-scheduler is the same program with the same configuration but
for `extenders`. Between the arms Coda's processes are ended, its admission policies unbound, and kube-scheduler starts
anew, so neither arm pays for the other. One replica each, and kube-scheduler calls the extender directly: on a cluster
the standby sits on another machine, and a Service is a packet rule, not the lab's forwarder.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from coda_lab import install
from coda_lab.host.paths import manifests
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.parts import scheduler_config
from coda_lab.local.startup import running_cluster
from coda_lab.spec import EXTENDER, FORWARDER, OPERATOR, SCHEDULER, ClusterSpec, Tell
from rig.usage import Usage, usage_by_pid

CODA: Final = "coda"
CODA_OVER_HTTP: Final = "coda over HTTP"
"""As `CODA`, but kube-scheduler and extender speak without TLS, as nothing but a measurement does."""
PLAIN: Final = "plain"
ARMS: Final = (CODA, PLAIN)
OURSELVES: Final = "benchmark"
CODA_PARTS: Final = (f"{EXTENDER}-0", f"{OPERATOR}-0")
NODES_PER_RACK: Final = 40
GPUS_PER_NODE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One load in one arm, from the first create to what was waited for; CPU seconds by part."""

    arm: str
    lasted_s: float
    cpu_s_by_part: Mapping[str, float]


class Arms:
    """A running cluster that can be in either arm; it begins in neither."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._arm = ""

    async def enter(self, arm: str) -> None:
        """Be in `arm`: what belongs to it runs and is synced, what does not has ended."""
        if arm == self._arm:
            return
        cluster = self.cluster
        for part in (SCHEDULER, *CODA_PARTS):
            if cluster.is_running(part):
                await cluster.kill(part, signal.SIGTERM)
        spec = replace(cluster.spec, coda=arm != PLAIN)
        config = scheduler_config(spec, cluster.layout, cluster.ports[CODA_PARTS[0]])
        is_over_http = arm == CODA_OVER_HTTP
        cluster.layout.scheduler_config.write_text(without_tls(config) if is_over_http else config)
        if spec.coda:
            for part in CODA_PARTS:
                await cluster.start(part, environ={"CODA_TLS_DIR": ""} if is_over_http else None)
            async with cluster.client() as admin:
                await install.wait_for_leader(admin)
        await self._bind_policies(bound=spec.coda)
        await cluster.start(SCHEDULER)
        self._arm = arm

    async def _bind_policies(self, *, bound: bool) -> None:
        """The API server asks no policy without a binding."""
        bindings = [item for item in install.objects_in(manifests()) if item["kind"].endswith("PolicyBinding")]
        async with self.cluster.client() as admin, self.cluster.client("user") as user:
            if bound:
                await install.apply_all(admin, bindings)
                await install.wait_until_refused(user)
                await install.wait_until_jobs_are_taken(user)
            else:
                await install.delete_all(admin, bindings)
                await install.wait_until_taken(user)

    def usage(self) -> dict[str, Usage]:
        """What every running part, and this process, has used so far."""
        return usage_by_pid(pids(self.cluster))


def without_tls(config: str) -> str:
    """The configuration of a kube-scheduler that asks the same extender in plain HTTP."""
    changed = json.loads(config)
    for extender in changed["extenders"]:
        extender["urlPrefix"] = extender["urlPrefix"].replace("https:", "http:")
        del extender["enableHTTPS"], extender["tlsConfig"]
    return json.dumps(changed, indent=2)


def pids(cluster: LocalCluster) -> dict[str, int | None]:
    """Of every part that runs; None stands for this process."""
    found: dict[str, int | None] = {OURSELVES: None}
    for name in cluster.part_by_name:
        process = cluster.process(name)
        if process is not None and process.exit_code is None:
            found[name] = process.id.pid
    return found


@asynccontextmanager
async def two_armed_cluster(nodes: int, tell: Tell, *, kind: type[LocalCluster] = LocalCluster) -> AsyncIterator[Arms]:
    """A cluster of equal nodes (8 GPUs, 48 cores) for the time of the block."""
    spec = ClusterSpec(
        nodes=f"{nodes}x{GPUS_PER_NODE}x48",
        racks=max(1, nodes // NODES_PER_RACK),
        extenders=1,
        stopped=frozenset({SCHEDULER, FORWARDER, *CODA_PARTS}),
    )
    async with running_cluster(spec, tell=tell, kind=kind) as cluster:
        yield Arms(cluster)
