"""The node agents, by their NodeProfiles: who tunes where, who has throttles in force, and which Xids GPUs had.

A NodeProfile is another program's word. Held of it is only what is read here. The mode becomes words of a reason, the
throttles a pod that restores; an Xid explains a failure of a pod on that agent's own node, and may cordon that node."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from coda.correlation.suspect_nodes import NodeXid
from coda.diagnosis.xids import SeenXid, XidKind, kind_of
from coda.lifecycle import RankPod
from coda.lifecycle.state import Untuned
from coda_kube.api.client import Client
from coda_kube.api.watch_cache import WatchCache, key_of, metadata_only
from coda_kube.failures.node_xids import SILENT_S, came_s, watches_xids, xids_from_json
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GROUP, VERSION
from coda_operator.view.job_record import JobRecord

PROFILES_PATH: Final = f"/apis/{GROUP}/{VERSION}/nodeprofiles"
HARDWARE_S: Final = 2400.0
"""How long an Xid of the hardware may explain a failure. Our choice: ranks wait up to half an hour for a lost peer."""
PROGRAM_S: Final = 120.0
"""The same of other Xids: the program that causes one ends at once."""
JITTER_S: Final = 30.0
"""Times of one Xid that differ by less are the same one. Our choice: half the time between two profiles."""
_READ: Final = ("time", "throttleCount", "tune")
_OFF: Final = "off"


class Agents:
    """The NodeProfiles of all nodes. Whoever needs them runs the cache."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.time) -> None:
        self.cache = WatchCache(client, PROFILES_PATH, listener=self._on_profile, held_part=_read_part)
        self._clock = clock
        self._xids_by_node: dict[str, tuple[NodeXid, ...]] = {}
        self._heard_s: dict[str, float] = {}  # of all nodes with an agent, by our own clock
        self._written_s: dict[str, float] = {}  # of the nodes whose agents watch, by our own clock
        self._news = asyncio.Event()

    def why_untuned(self, job: JobRecord) -> Untuned | None:
        """Return why nobody looks for the cores of `job`; None if they are found, or are not to be found."""
        if job.placement is None or not (job.is_untuned or job.is_searched):
            return None
        node = job.placement.nodes[0]
        why = self.why_not_on(node)
        lives = self._clock() - self._heard_s.get(node, -math.inf) < SILENT_S
        return Untuned.SEARCHED if job.is_searched and why is Untuned.SILENT and lives else why

    def why_not_on(self, node: str) -> Untuned:
        """Return the same of a job with its rank 0 on `node`."""
        if not self.cache.synced.is_set():
            return Untuned.UNKNOWN
        profile = self.cache.by_key.get(node)
        if profile is None:
            return Untuned.NO_AGENT
        return Untuned.OFF if profile["status"].get("tune") == _OFF else Untuned.SILENT

    @property
    def watched(self) -> frozenset[str]:
        """Return the nodes whose agents see every Xid. One that wrote nothing for two hours is dead."""
        now_s = self._clock()
        return frozenset(node for node, at_s in self._written_s.items() if now_s - at_s < SILENT_S)

    def xids(self) -> Iterable[NodeXid]:
        """Return every Xid that is told, by node."""
        return tuple(one for _, found in sorted(self._xids_by_node.items()) for one in found)

    def xids_of(self, pod: RankPod) -> tuple[SeenXid, ...]:
        """Return what the agent of the pod's own node saw on its GPUs, and may explain that it fails now."""
        now_s, found = self._clock(), self._xids_by_node.get(pod.node or "", ())
        return tuple(
            sorted(
                SeenXid(one.xid, one.gpu)
                for one in found
                if pod.uid in one.pods
                and now_s - one.time_s < (PROGRAM_S if kind_of(one.xid) is XidKind.PROGRAM else HARDWARE_S)
            )
        )

    async def await_xid(self, pods: Iterable[RankPod], limit_s: float) -> bool:
        """Wait until an Xid of one of the pods is known, at most `limit_s`; True if one is.

        It does not wait where no agent would tell of one."""
        watched = [pod for pod in pods if pod.node in self._written_s]
        try:
            async with asyncio.timeout(limit_s):
                while not any(map(self.xids_of, watched)):
                    if not watched:
                        return False
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _on_profile(self, old: Json | None, new: Json | None) -> None:
        node = key_of(new or old or {})
        before = {_key(one): one for one in self._xids_by_node.pop(node, ())}
        self._written_s.pop(node, None)
        self._heard_s.pop(node, None)
        if new is None:
            return
        now_s = self._clock()
        written_s = now_s if self.cache.synced.is_set() else came_s(new, now_s)
        self._heard_s[node] = written_s
        if found := xids_from_json(new, written_s):
            self._xids_by_node[node] = tuple(_steady(one, before.get(_key(one))) for one in found)
        if watches_xids(new):
            self._written_s[node] = written_s
        self._news.set()


def _key(one: NodeXid) -> tuple[str, int, tuple[str, ...]]:
    return one.gpu, one.xid, one.pods


def _steady(one: NodeXid, before: NodeXid | None) -> NodeXid:
    """Keep the times that were believed before: a profile travels now faster, now slower.

    One that is not dated would be as young as each profile: it is as old as when it was first told."""
    if before is None:
        return one
    if not one.dated:
        return replace(one, first_s=before.first_s, time_s=before.time_s)
    return replace(one, first_s=_kept(one.first_s, before.first_s), time_s=_kept(one.time_s, before.time_s))


def _kept(now_s: float, before_s: float) -> float:
    return before_s if abs(now_s - before_s) < JITTER_S else now_s


def _read_part(profile: Json) -> Json:
    """A profile may have a thousand sockets and links."""
    status = profile.get("status") or {}
    return metadata_only(profile) | {"status": {name: status[name] for name in _READ if name in status}}
