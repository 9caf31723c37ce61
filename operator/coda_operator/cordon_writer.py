"""Cordons, for Coda alone, the nodes whose GPUs are suspect; which ones is decided in `coda.correlation`.

A cordon is no state of its own: it follows from what agents saw and from the jobs that failed. The jobs that wait name
the nodes in `status.avoidNodes`, which the planner obeys. An administrator ends it with an annotation of the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from coda.correlation.suspect_nodes import CORDON_S, Cordon, NodeEvidence, suspect_nodes
from coda.errors import CodaError
from coda.wording import moment_text
from coda_kube.api.client import AlreadyExists, Client
from coda_kube.failures.node_failures import Suspicion
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_CLEARED, OPERATOR
from coda_kube.objects.quantities import micro_time_from_seconds
from coda_operator.view import ClusterView

log = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 5.0
"""A cordon also ends by time, and failures come one by one. A check takes less than a millisecond."""
PROBATION: Final = "Coda places jobs on this node again; one that succeeds ends its probation"
EVENTS: Final = "/api/v1/namespaces/default/events"  # where Kubernetes keeps those of nodes


class Cordons:
    """Keeps the cluster's cordons up to date, tells of each change, and wakes the jobs that wait."""

    def __init__(
        self,
        client: Client,
        cluster: ClusterView,
        show: Callable[[int], None],
        *,
        identity: str,
        share: float,
        cordon_s: float = CORDON_S,
        clock: Callable[[], float],
    ) -> None:
        """`show` is told how many nodes are cordoned; `share` of the pool's nodes may be,
        each for `cordon_s`."""
        self._client = client
        self._cluster = cluster
        self._show = show
        self._identity = identity
        self._share = share
        self._cordon_s = cordon_s
        self._clock = clock

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                await self.check()
                await asyncio.sleep(CHECK_EVERY_S)
        finally:
            self._show(0)  # the next leader's word counts

    async def check(self) -> None:
        """Decide once; not before every job and every agent's word is known, nor while jobs are listed again.

        Costs no request if nothing changes."""
        nodes, agents, failed = self._cluster.nodes, self._cluster.agents, self._cluster.failed_jobs.on_nodes
        if self._cluster.listing.is_set() or not agents.cache.synced.is_set():
            return
        evidence = NodeEvidence(
            failures=failed.all(),
            xids=agents.xids(),
            runs=failed.runs(),
            watched=agents.watched,
            cleared_s=nodes.cleared_s(),
            created_s=nodes.created_s(),
        )
        verdict = suspect_nodes(evidence, nodes.with_gpus(), self._clock(), self._share, self._cordon_s)
        before, after = self._cluster.suspicion, {cordon.node: cordon for cordon in verdict.cordons}
        until_s = {node: cordon.until_s for node, cordon in after.items()}
        now = Suspicion(cordons=after, until_s=until_s, ended=verdict.ended, probation=verdict.probation)
        self._show(len(after))
        if now == before:
            return
        self._cluster.suspicion = now
        self._cluster.wake_waiting()
        for node in sorted(after.keys() - before.cordons.keys()):
            await self._tell(node, "SuspectGPU", cordon_text(after[node]), "Warning")
        left = before.cordons.keys() | before.probation
        for node in sorted((before.cordons.keys() & now.probation) - after.keys()):
            await self._tell(node, "OnProbation", PROBATION, "Normal")
        for node in sorted(left - after.keys() - now.probation):
            await self._tell(node, "Trusted", "Coda trusts the GPUs of this node again", "Normal")

    async def _tell(self, node: str, reason: str, message: str, kind: str) -> None:
        log.warning("node %s: %s", node, message)
        event = node_event_json(node, reason, message, kind, identity=self._identity, now_s=self._clock())
        try:
            await self._client.create(EVENTS, event)
        except AlreadyExists:
            pass
        except CodaError as error:
            log.info("event on node %s lost: %s", node, error)


def cordon_text(cordon: Cordon) -> str:
    """Say in one sentence why, until when, and how to end it."""
    return (
        f"Coda places no job here until {moment_text(cordon.until_s)}: {cordon.why};"
        f" to end it: kubectl annotate node {cordon.node} --overwrite {ANNOTATION_CLEARED}=$(date -u +%FT%TZ)"
    )


def node_event_json(node: str, reason: str, message: str, kind: str, *, identity: str, now_s: float) -> Json:
    """Return an Event on a node, which `kubectl describe node` shows."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "default", "name": f"{node}.{int(now_s * 1e6):x}"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "type": kind,
        "reason": reason,
        "message": message,
        "action": "Cordon",
        "eventTime": micro_time_from_seconds(now_s),
        "reportingComponent": OPERATOR,
        "reportingInstance": identity[:128],
    }
