"""Whether the API server knows every field that this version writes.

Helm never upgrades CustomResourceDefinitions. With an older one the API server cuts off the fields it does not know, in
silence: an order to stop would be given again in every cycle, and never seen. So a program does not lead until the
definitions are upgraded, and says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from coda.errors import CodaError
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION

log = logging.getLogger(__name__)

APPLY_DEFINITIONS: Final = "kubectl apply --server-side --force-conflicts -f crds/"
"""What an administrator types to bring the definitions up to date."""

OPENAPI: Final = f"/openapi/v3/apis/{API_VERSION}"
CHECK_EVERY_S: Final = 60.0
LOOK_AGAIN_S: Final = 5.0
"""No event tells: the served schema has no watch, and no part of Coda has the right to watch the definitions.

So it is polled, by the leader of each program alone, and by those who want to lead and may not. One request of 0.2 MB
takes 8 ms of our time (measured; the comparison 0.2 ms), and no longer than any request."""
_SHOWN: Final = 5

_WRITTEN: Final[Mapping[str, str]] = {
    "TrainingJob": """
        status.array status.attempt status.avoidNodes status.completionTime status.conditions status.cores
        status.coresMultipleOf
        status.delays.began status.delays.cause status.delays.doing status.delays.gpusPerRank status.delays.gpusSince
        status.delays.heldGPUSeconds status.delays.heldSeconds status.delays.ranksWithGPUs
        status.delays.runSeconds status.delays.since status.delays.waits
        status.disruptions status.disruptionsInARow
        status.failure.advice status.failure.alike.jobs status.failure.alike.names status.failure.attempt
        status.failure.category status.failure.cutShort status.failure.decision
        status.failure.evidence status.failure.explicit status.failure.node status.failure.rank status.failure.reason
        status.failure.repeats status.failure.retry status.failure.signature status.failure.subReason
        status.failure.time status.failure.unread status.failure.xid
        status.failures status.gpus status.grownMemory.limit status.grownMemory.request
        status.lastStop.answer status.lastStop.attempt status.lastStop.by
        status.lastStop.cause status.lastStop.lostSeconds status.launchTime status.lostGPUSeconds status.lostSeconds
        status.message
        status.notBefore status.observedGeneration status.pending.cause status.pending.code
        status.pending.generation
        status.pending.holders status.pending.message status.pending.numbers status.pending.since status.phase
        status.placement.attempt status.placement.bindDeadline status.placement.borrows
        status.placement.committedTime status.placement.cpusPerReplica status.placement.epoch
        status.placement.generation status.placement.gpus status.placement.grant.code
        status.placement.grant.coresPerReplica
        status.placement.grant.deadline status.placement.grant.message status.placement.grant.mostCores
        status.placement.grant.sequence status.placement.grant.state status.placement.grant.time
        status.placement.nodes status.placement.planId status.placement.rank0Node status.placement.state
        status.placement.stop.by status.placement.stop.cause status.placement.stop.noticeSeconds
        status.placement.stop.time
        status.progress.attempt status.progress.bestEpoch status.progress.bestLoss status.progress.epoch
        status.progress.estimatedEnd status.progress.learningRate status.progress.loss status.progress.message
        status.progress.plateau.epoch status.progress.plateau.epochs status.progress.plateau.lastEpoch
        status.progress.plateau.loss status.progress.savedStep status.progress.savedTime status.progress.step
        status.progress.stopAnswer
        status.progress.time status.progress.totalEpochs status.progress.totalSteps status.queuedTime status.reason
        status.request.cpusPerReplica status.request.nodeSelector status.request.nodeSelectorTerms
        status.request.priority status.request.quota status.request.resources
        status.request.scopes.priorityClassName status.request.scopes.terminating status.request.tolerations
        status.request.volumeClaims
        status.resize.attempt status.resize.coresPerReplica status.resize.message status.resize.reason
        status.resize.sequence status.resize.since status.resize.state status.resize.wanted status.returned
        status.servedSeconds status.sharing.beside status.sharing.class status.sharing.expectedSpeed
        status.stall.counted status.stall.epoch status.stall.failures status.stall.ranSeconds status.stall.row
        status.stall.savedStep status.stall.step
        status.startTime status.stopDeadline
        status.succeededRanks status.trial.attempt status.trial.message status.trial.outcome status.trial.seconds
        status.trial.since status.tuning.answer.coresPerReplica
        status.tuning.answer.outcome status.tuning.answer.start status.tuning.attempt
        status.tuning.holds.floor status.tuning.holds.free status.tuning.holds.tight
        status.tuning.message status.tuning.pauses.coreSeconds status.tuning.pauses.coresPerReplica
        status.tuning.pauses.gpus status.tuning.pauses.gpusPerReplica status.tuning.pauses.servedSeconds
        status.tuning.pauses.since status.tuning.pauses.until
        status.tuning.phase status.tuning.reason status.tuning.search.again
        status.tuning.search.blurred status.tuning.search.capped status.tuning.search.failed
        status.tuning.search.fell status.tuning.search.gpus status.tuning.search.kept
        status.tuning.search.leg status.tuning.search.moves status.tuning.search.odd
        status.tuning.search.refused status.tuning.search.restless status.tuning.search.rose
        status.tuning.search.silent status.tuning.search.start status.tuning.search.trying
        status.tuning.steps status.tuning.watch.away status.tuning.watch.confirmed
        status.tuning.watch.coresPerReplica status.tuning.watch.level status.tuning.watch.noise
        status.tuning.watch.patience status.tuning.watch.since status.tuning.watch.tries
        status.tuning.wish.coresPerReplica status.tuning.wish.deadline status.tuning.wish.sequence
        status.tuning.wish.time status.waitingSince
    """,
    "NodeProfile": """
        status.agentVersion status.bandwidth.control status.bandwidth.groups status.bandwidth.measured
        status.bandwidth.monitoringIDs status.cores status.gpuCount status.gpus status.lacks status.links
        status.ranks status.socketCount status.sockets status.throttleCount status.throttles status.time
        status.tune status.watchesXids status.xids
    """,
}
"""The fields of each kind that some part of Coda writes. A test compares them with `crds/`."""

WRITTEN: Final[Mapping[str, tuple[str, ...]]] = {kind: tuple(text.split()) for kind, text in _WRITTEN.items()}


class ServedSchema:
    """What the API server's schema lacks. An API server that gives no schema counts as complete."""

    def __init__(self, client: Client) -> None:
        self.lacks: tuple[str, ...] = ()
        self._client = client

    @property
    def is_complete(self) -> bool:
        """True unless the last check found a field missing."""
        return not self.lacks

    @property
    def sentence(self) -> str:
        """What is wrong, and what to do."""
        more = f" and {len(self.lacks) - _SHOWN} more" if len(self.lacks) > _SHOWN else ""
        return f"the API server does not know {', '.join(self.lacks[:_SHOWN])}{more}: apply the newest crds/"

    async def check(self) -> bool:
        """Compare once. True if nothing is missing."""
        try:
            self.lacks = tuple(missing_fields(await self._client.get(OPENAPI)))
        except (CodaError, LookupError, TypeError, AttributeError) as error:
            log.debug("the schema cannot be read: %s", error)
        return self.is_complete

    async def wait_until_complete(self) -> None:
        """Wait until nothing is missing."""
        said = ""
        while not await self.check():
            if self.sentence != said:
                said = self.sentence
                log.error("not leading: %s", said)
            await asyncio.sleep(LOOK_AGAIN_S)

    async def wait_until_incomplete(self) -> None:
        """Check from time to time; return once something is missing: the definitions were replaced by older ones."""
        while await self.check():
            await asyncio.sleep(CHECK_EVERY_S)
        log.error("no longer leading: %s", self.sentence)


def missing_fields(document: Json) -> Iterator[str]:
    """Yield the fields that an OpenAPI document lacks. A kind that is absent is not served yet, and lacks nothing."""
    for schema in document["components"]["schemas"].values():
        kinds = [each["kind"] for each in schema.get("x-kubernetes-group-version-kind") or ()]
        for path in (path for kind in kinds for path in WRITTEN.get(kind, ())):
            if not _has(schema, path.split(".")):
                yield path


def _has(schema: Mapping[str, Any], names: list[str]) -> bool:
    for name in names:
        schema = (schema.get("properties") or {}).get(name) or {}
    return bool(schema)
