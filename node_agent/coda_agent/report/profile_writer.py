"""When the NodeProfile is written, and what it says of the node. Its JSON is made in `node_profile`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from coda.allocator.ranks import RankReport
from coda.errors import CodaError
from coda_agent.cluster import AgentCaches, BackgroundWrites, ranks_json
from coda_agent.gpus import Health, LibraryState
from coda_agent.modes import TuneMode
from coda_agent.node import Node
from coda_agent.report.gpu_uses import GpuUse
from coda_agent.report.node_profile import (
    MOST_PODS,
    NodeProfile,
    SocketProfile,
    profile_json,
    profile_object,
    with_throttles,
)
from coda_agent.report.xid_record import XidEntry, xids_json
from coda_agent.sensor import Senses
from coda_kube.objects.json_types import Json

log = logging.getLogger(__name__)

PROFILE_S: Final = 60.0
"""Least seconds between two writes of the NodeProfile."""

LONGEST_S: Final = 3600.0
"""Seconds after which an unchanged profile is written too: somebody may have deleted it."""

NEWS_S: Final = 5.0
"""Least seconds between two writes, where the last profile has no throttle and there is one now, or of a rank's new
report, or an Xid, or of pods whose memory a guaranteed job waits for, or no longer."""

END_S: Final = 5.0
"""Seconds for the last write; the pod's grace period is 30."""


class ProfileWriter:
    """Writes the NodeProfile of one node."""

    def __init__(self, name: str, tune: TuneMode, node: Node, cluster: AgentCaches, writes: BackgroundWrites) -> None:
        self._name = name
        self._tune = tune
        self._node = node
        self._cluster = cluster
        self._writes = writes
        self._written_status: Json | None = None
        self._written_at_s = float("-inf")
        self._last_with_throttles: Json | None = None  # until a profile without throttles was surely written

    def write_profile(
        self,
        senses: Senses,
        reports: Sequence[RankReport] = (),
        xids: Sequence[XidEntry] = (),
        number_by_gpu: Mapping[str, int] | None = None,
        use_by_gpu: Mapping[str, GpuUse] | None = None,
    ) -> None:
        """Start writing the profile if it changed or is an hour old, at most once a minute.

        With throttles it is written every minute: the operator takes a silent agent for dead. The first throttle is
        written at once, because the operator learns from it what to undo, and so is a rank's new report, because the
        agent of rank 0 waits for it, a new Xid, because it says why a job fails, whom a guaranteed job waits for,
        because that fails soon, and that it waits no longer, because jobs are stopped for it. Otherwise nothing is
        written while GPUs settle, because that state would stay in the profile for long."""
        now_s = senses.at.monotonic_s
        before, ranks = self._written_status or {}, ranks_json(reports)
        is_first = bool(self._node.throttles) and not before.get("throttles")
        is_news = any(report not in before.get("ranks", ()) for report in ranks)
        told = {(one["gpu"], one["xid"], *one["podUIDs"]) for one in before.get("xids", ())}
        is_news |= any((one["gpu"], one["xid"], *one["podUIDs"]) not in told for one in xids_json(xids))
        is_news |= _awaited(use_by_gpu or {}) != _told_awaited(before)
        settling = any(reading.health is Health.SETTLING for reading in senses.gpus.readings)
        is_urgent = is_first or is_news
        pause_s = NEWS_S if is_urgent else PROFILE_S
        if (
            now_s - self._written_at_s < pause_s
            or (settling and not is_urgent)
            or not self._writes.may_begin("profile")
        ):
            return
        status = profile_status(self._node, senses, self._tune, xids, number_by_gpu, use_by_gpu)
        status |= {"ranks": ranks} if ranks else {}
        if status == self._written_status and not status["throttles"] and now_s - self._written_at_s < LONGEST_S:
            return
        self._written_status, self._written_at_s = status, now_s
        if status["throttles"]:
            self._last_with_throttles = status
        profile = profile_object(self._name, status, senses.at.wall_s)
        self._writes.begin(
            "profile",
            lambda: self._cluster.write_profile(profile),
            on_success=partial(self._on_written, status),
            on_failure=self._forget_written,
        )

    async def write_last_profile(self, wall_s: float) -> None:
        """Write what is left of the throttles, if the profile may name any: a dead agent updates nothing."""
        status = self._last_with_throttles
        if status is None:
            return
        profile = profile_object(self._name, with_throttles(status, self._node.throttles), wall_s)
        try:
            await asyncio.wait_for(self._cluster.write_profile(profile), timeout=END_S)
        except (CodaError, TimeoutError) as error:
            log.warning("the NodeProfile still tells of throttles that are undone: %s", error)

    def _on_written(self, status: Json) -> None:
        if not status["throttles"]:
            self._last_with_throttles = None

    def _forget_written(self) -> None:
        self._written_status, self._written_at_s = None, float("-inf")


def _awaited(use_by_gpu: Mapping[str, GpuUse]) -> set[tuple[str, str]]:
    return {(gpu, uid) for gpu, use in use_by_gpu.items() if use.waits for uid in use.crowded_out[:MOST_PODS]}


def _told_awaited(status: Json) -> set[tuple[str, str]]:
    told = [gpu for gpu in status.get("gpus", ()) if "ownerWaits" in gpu]
    return {(gpu["uuid"], uid) for gpu in told for uid in gpu["crowdedOutPodUIDs"]}


def profile_status(
    node: Node,
    senses: Senses,
    tune: TuneMode,
    xids: Sequence[XidEntry] = (),
    number_by_gpu: Mapping[str, int] | None = None,
    use_by_gpu: Mapping[str, GpuUse] | None = None,
) -> Json:
    """Return `status` of the NodeProfile, without its time.

    By UUID, where GPUs are shared: `number_by_gpu` of its seats' resource, `use_by_gpu` by whom it is had whole."""
    gpus = senses.gpus
    unseen = (*gpus.unreadable, *gpus.xid_lacks)  # a device that does not open is not watched either
    return profile_json(
        NodeProfile(
            cores=node.topology.cores,
            sockets=[
                SocketProfile(
                    id=socket,
                    cpus=cpus,
                    peak_bytes_per_s=None if node.peak is None else node.peak.bytes_per_s.get(socket),
                    peak_source=None if node.peak is None else node.peak.source,
                )
                for socket, cpus in node.topology.cpus_by_socket.items()
            ],
            abilities=node.abilities,
            limits_cores=node.limits_cores,
            gpus=gpus.readings,
            number_by_gpu=number_by_gpu or {},
            use_by_gpu=use_by_gpu or {},
            links=gpus.links,
            throttles=node.throttles,
            tune=tune,
            lacks=(*node.lacks, *([gpus.why] if gpus.why else []), *unseen),
            watches_xids=gpus.library is LibraryState.READY and not unseen,
            xids=xids,
        )
    )
