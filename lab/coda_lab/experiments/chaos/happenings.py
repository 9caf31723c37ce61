"""Lets the accidents happen to a cluster, and says what they did. `restore` has the part of etcd.

Each accident ends by itself. Afterwards the system must make progress: a pod of a gang is bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_JOB_UID, OPERATOR_LEASE, PLANNER_LEASE
from coda_lab import install
from coda_lab.experiments.chaos.accidents import Accident, Mishap
from coda_lab.experiments.chaos.faults import GIVE_UP_S
from coda_lab.experiments.chaos.jumping_clock import set_clock
from coda_lab.experiments.chaos.progress_signs import LEASES, Signs, What
from coda_lab.experiments.chaos.restore import Restorer
from coda_lab.experiments.load.account import Account
from coda_lab.experiments.load.driver import insist
from coda_lab.experiments.load.recorded import locked
from coda_lab.experiments.load.watches import ALL_PODS
from coda_lab.host.paths import crds, manifests
from coda_lab.kubelets.fleet import LOST
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import EXTENDER, OPERATOR

NODE_LOST: Final = "NodeLost"
LATER_S: Final = 3.0  # a loss that was judged during the accident may be written a little later
KIND_BY_TARGET: Final = {"operator": OPERATOR, "planner": EXTENDER}
LEASE_BY_TARGET: Final = {"operator": OPERATOR_LEASE, "planner": PLANNER_LEASE}
YOUNGER: Final = ("stop",)
"""Fields of `status.placement` that an older definition does not have: the API server drops them in silence."""
_NODES: Final = "/api/v1/nodes"
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """An accident that happened. Times are seconds since 1970; `recovered_s` None: no progress within GIVE_UP_S."""

    mishap: Mishap
    what: str
    began_s: float
    ended_s: float
    recovered_s: float | None
    problems: tuple[str, ...] = ()

    @property
    def recovery_s(self) -> float | None:
        """From its end to the next bound pod of a gang."""
        return None if self.recovered_s is None else max(0.0, self.recovered_s - self.ended_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """What accidents work on. `clock_by_part`: the file that each part's clock follows."""

    cluster: LocalCluster
    admin: Client
    nodes: Sequence[str]
    account: Account
    signs: Signs
    clock_by_part: Mapping[str, Path]
    restorer: Restorer


class Happenings:
    """The accidents of one run. `tell` receives each one and what became of it."""

    def __init__(self, grounds: Grounds, tell: Callable[[Mishap, str], None]) -> None:
        self._grounds = grounds
        self._tell = tell
        self._now = time.time
        self._acts = {
            Accident.REBOOT: self._reboot,
            Accident.ALL_NOT_READY: self._cut_off,
            Accident.MOST_NOT_READY: self._cut_off,
            Accident.CLOCK_JUMP: self._jump,
            Accident.ETCD_RESTORE: self._restore,
            Accident.LEASE_DELETED: self._delete_lease,
            Accident.OLD_CRD: self._downgrade,
            Accident.DRAIN: self._drain,
            Accident.POLICIES_REMOVED: self._remove_policies,
            Accident.DATABASE_LOCKED: self._lock_database,
        }

    async def happen(self, mishap: Mishap) -> Happened:
        """Let it happen, and wait until the system has made progress again."""
        before, began_s = self._grounds.account.roll_backs[NODE_LOST], self._now()
        self._tell(mishap, f"{mishap.accident.value}, for {mishap.lasts_s:g} s")
        what = await self._acts[mishap.accident](mishap)
        ended_s = self._now()
        recovered_s = await self._progress(ended_s)
        problems = []
        if mishap.share:
            await asyncio.sleep(max(0.0, ended_s + LATER_S - self._now()))
            lost = self._grounds.account.roll_backs[NODE_LOST] - before
            if lost:
                problems.append(f"accident {mishap.number}, {what}: {lost} gangs were given up as {NODE_LOST}")
        if recovered_s is None:
            problems.append(f"accident {mishap.number}, {what}: no progress afterwards")
        took = "no progress" if recovered_s is None else f"progress after {max(0.0, recovered_s - ended_s):.1f} s"
        self._tell(mishap, f"{what}: {took}")
        return Happened(
            mishap=mishap,
            what=what,
            began_s=began_s,
            ended_s=ended_s,
            recovered_s=recovered_s,
            problems=tuple(problems),
        )

    async def _progress(self, ended_s: float) -> float | None:
        try:
            async with asyncio.timeout(GIVE_UP_S):
                return (await self._grounds.signs.next_after(What.BOUND, ended_s)).seen_s
        except TimeoutError:
            return None

    # --- nodes --------------------------------------------------------------------------------------------------------

    async def _reboot(self, mishap: Mishap) -> str:
        first = int(mishap.choice * len(self._grounds.nodes))
        names = [self._grounds.nodes[(first + step) % len(self._grounds.nodes)] for step in range(mishap.nodes)]
        await self._silenced(names, "reboot", mishap.lasts_s)
        return f"reboot of {', '.join(names)}"

    async def _cut_off(self, mishap: Mishap) -> str:
        names = list(self._grounds.nodes[: round(mishap.share * len(self._grounds.nodes))])
        await self._silenced(names, "true", mishap.lasts_s)
        return f"{len(names)} of {len(self._grounds.nodes)} nodes cut off"

    async def _silenced(self, names: Sequence[str], how: str, lasts_s: float) -> None:
        await self._annotate(names, how)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            await self._annotate(names, None)

    async def _annotate(self, names: Sequence[str], value: str | None) -> None:
        patch = {"metadata": {"annotations": {LOST: value}}}
        await self._each(names, lambda name: self._grounds.admin.patch(f"{_NODES}/{name}", patch))

    async def _drain(self, mishap: Mishap) -> str:
        admin = self._grounds.admin
        pods = [
            pod for pod in (await _listed(admin, ALL_PODS)) if LABEL_JOB_UID in (pod["metadata"].get("labels") or {})
        ]
        done = sorted({_node_of(pod) for pod in pods if pod["status"].get("phase") == "Succeeded"})
        names = done or sorted({_node_of(pod) for pod in pods if _node_of(pod)}) or list(self._grounds.nodes)
        name = names[int(mishap.choice * len(names))]
        await insist(lambda: admin.patch(f"{_NODES}/{name}", {"spec": {"unschedulable": True}}))
        try:
            mine = [_id_of(pod) for pod in pods if _node_of(pod) == name]
            await self._each(mine, self._evict)
            await asyncio.sleep(mishap.lasts_s)
        finally:
            await insist(lambda: admin.patch(f"{_NODES}/{name}", {"spec": {"unschedulable": None}}))
        return f"drain of {name} ({len(mine)} pods of gangs, finished ranks: {'yes' if done else 'no'})"

    async def _evict(self, pod: str) -> Json:
        namespace, name = pod.split("/")
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        return await self._grounds.admin.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)

    # --- Coda's own objects and clocks --------------------------------------------------------------------------------

    async def _jump(self, mishap: Mishap) -> str:
        part = self._leading(mishap.target)
        clock = self._grounds.clock_by_part[part]
        set_clock(clock, mishap.jump_s)
        try:
            await asyncio.sleep(mishap.lasts_s)
        finally:
            set_clock(clock, 0.0)
        return f"the clock of {part} ({mishap.target}) jumped by {mishap.jump_s:+g} s and back"

    def _leading(self, target: str) -> str:
        kind, holder = KIND_BY_TARGET[target], self._grounds.signs.holder_by_lease.get(LEASE_BY_TARGET[target], "")
        parts = [name for name in self._grounds.cluster.part_by_name if name.startswith(f"{kind}-")]
        return next((name for name in parts if holder.startswith(f"coda-{name}")), parts[0])

    async def _delete_lease(self, mishap: Mishap) -> str:
        lease = LEASE_BY_TARGET[mishap.target]
        await insist(lambda: self._grounds.admin.delete(f"{LEASES}/{lease}"))
        await asyncio.sleep(mishap.lasts_s)
        return f"the Lease {lease} was deleted"

    async def _downgrade(self, mishap: Mishap) -> str:
        admin, definitions = self._grounds.admin, install.objects_in(crds())
        await insist(lambda: install.apply_all(admin, [older(each) for each in definitions]))
        try:
            await asyncio.sleep(mishap.lasts_s)
        finally:
            await insist(lambda: install.apply_all(admin, definitions))
        return "an older definition was applied and the right one again"

    async def _remove_policies(self, mishap: Mishap) -> str:
        """What is submitted meanwhile is neither checked nor stamped."""
        admin, policies = self._grounds.admin, install.policies_in(manifests())
        await insist(lambda: install.delete_all(admin, policies))
        try:
            await asyncio.sleep(mishap.lasts_s)
        finally:
            await insist(lambda: install.apply_all(admin, policies))
        return f"{len(policies)} policies and bindings were removed and applied again"

    async def _lock_database(self, mishap: Mishap) -> str:
        async with locked(self._grounds.cluster.layout.history):
            await asyncio.sleep(mishap.lasts_s)
        return "the history's database was locked"

    async def _restore(self, mishap: Mishap) -> str:
        await self._grounds.restorer.restore(mishap.lasts_s)
        return f"etcd was restored from a snapshot of {mishap.lasts_s:g} s before"

    async def _each(self, names: Sequence[str], request: Callable[[str], Any]) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str) -> None:
            async with slots:
                await insist(lambda: request(name))

        await asyncio.gather(*(one(name) for name in names))


def older(definition: Json) -> Json:
    """The definition without the fields that came last."""
    found = deepcopy(definition)
    for version in found["spec"]["versions"]:
        status = version["schema"]["openAPIV3Schema"]["properties"].get("status") or {}
        placement = (status.get("properties") or {}).get("placement") or {}
        for name in YOUNGER:
            (placement.get("properties") or {}).pop(name, None)
    return found


async def _listed(client: Client, path: str) -> list[Json]:
    items: list[Json] = []

    async def read() -> None:
        items.extend((await client.list_pages(path))["items"])

    await insist(read)
    return items


def _id_of(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _node_of(pod: Json) -> str:
    return str(pod["spec"].get("nodeName") or "")
