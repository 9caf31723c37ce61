"""The VirtualClusters of a cluster: which tenant a namespace belongs to, and what each tenant uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, NamedTuple

from coda.errors import InvalidInput
from coda.model import FINISHED, Job, JobId
from coda.model.live_placement import is_waiting
from coda.model.resources import CPU, GPUS, Resources
from coda.model.seats import is_sharer
from coda.model.world import VirtualCluster
from coda.nodes.array_use import TenantLoans
from coda.tenants import TenantTree
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import quantity_from_milli, seconds_from_time


class TenantAmounts(NamedTuple):
    """Sums over the jobs of one tenant. GPUs are those of training jobs, millicores those of CPU jobs."""

    gpus: int = 0
    waiting_gpus: int = 0
    cpu_m: int = 0
    waiting_cpu_m: int = 0
    running: int = 0
    waiting: int = 0


_NOTHING: Final = TenantAmounts()

CLUSTER_HAS_LESS: Final = "ClusterHasLess"
"""Why tenants at the top are oversubscribed: they own more together than all nodes have."""

_AHEAD_S: Final = 60.0
"""A time of an edit is believed if it is no later than so long after now. Our choice: clocks differ by seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One object, as far as it counts."""

    tenant: VirtualCluster
    namespaces: tuple[str, ...]
    age: tuple[str, str]  # creation time and name: the older one has the namespaces that two name
    generation: int
    edited_s: float  # when somebody last edited it, by the API server's clock; minus infinity if nobody says


class VirtualClusters:
    """Reads them, and adds up what the jobs of each hold and wait for. A job is counted in O(1).

    A namespace that changes hands may have thousands of jobs, so `pop_outdated` names them bit by bit."""

    def __init__(
        self, now_s: Callable[[], float] = time.time, on_loss: Callable[[str], None] = lambda _name: None
    ) -> None:
        """`on_loss`: called when `note_losses` changed what is known of a tenant."""
        self._now_s, self._on_loss = now_s, on_loss
        self._entry_by_name: dict[str, _Entry] = {}
        self._tenant_by_namespace: dict[str, str] = {}
        self._rivals: dict[str, dict[str, str]] = {}  # by tenant: its namespaces that another one names too, and which
        self._amounts_by_tenant: dict[str, TenantAmounts] = {}  # of its own jobs, without those below it
        self._tenant_by_name: dict[str, VirtualCluster] | None = None  # None: some changed
        self._tree: TenantTree | None = None  # None: it has changed
        self._seen: TenantTree | None = None  # as of the last `note_losses`
        self._given: set[str] = set()  # tenants to which namespaces came since then
        self._lost_s: dict[str, float] = {}  # when tenants came to own less
        self._changed: set[str] = set()  # namespaces that changed hands, and whose jobs were not looked for yet
        self._outdated: list[JobId] = []  # jobs of such namespaces

    def __len__(self) -> int:
        return len(self._entry_by_name)

    def by_name(self) -> dict[str, VirtualCluster]:
        """Every virtual cluster, by name. O(virtual clusters log them) after a change."""
        if self._tenant_by_name is None:
            entries = self._entry_by_name
            self._tenant_by_name = {
                name: replace(entries[name].tenant, lost_s=self._lost_s.get(name, -inf)) for name in sorted(entries)
            }
        return self._tenant_by_name

    def get(self, name: str) -> VirtualCluster | None:
        """The virtual cluster of that name; None if there is none."""
        entry = self._entry_by_name.get(name)
        return entry.tenant if entry is not None else None

    @property
    def tree(self) -> TenantTree:
        """The tree of all. O(virtual clusters x levels) after a change."""
        if self._tree is None:
            self._tree = TenantTree(self.by_name().values())
        return self._tree

    def note(self, old: Json | None, new: Json | None) -> Collection[str]:
        """One came, changed or went. Returns the namespaces that belong to another tenant now.

        O(all namespaces) if its own are others now. An object that cannot be read changes nothing."""
        name = (new or old or {})["metadata"]["name"]
        entry = _entry_from_json(new) if new is not None else None
        known = self._entry_by_name.pop(name, None)
        if entry is None or known is None or entry.tenant != known.tenant:
            self._tree = self._tenant_by_name = None  # else it is its status, which we write ourselves
        if entry is not None:
            self._entry_by_name[name] = entry
            if known is not None and (entry.namespaces, entry.age) == (known.namespaces, known.age):
                return ()
        before, self._tenant_by_namespace, self._rivals = self._tenant_by_namespace, {}, {}
        for entry in sorted(self._entry_by_name.values(), key=lambda entry: entry.age):
            name = entry.tenant.name
            for namespace in entry.namespaces:
                first = self._tenant_by_namespace.setdefault(namespace, name)
                if first != name:
                    self._rivals.setdefault(name, {})[namespace] = first
                    self._rivals.setdefault(first, {}).setdefault(namespace, name)
        now = self._tenant_by_namespace
        changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
        self._changed |= changed
        self._given |= {now[name] for name in changed if name in now}
        return changed

    def note_losses(self) -> None:
        """Note who came to own less since the last call, or shares it now with namespaces that came.

        The first call knows only when somebody last edited a spec, or its labels: it takes the times that are told.
        O(1) if nothing changed, else O(virtual clusters x levels)."""
        before, now, given = self._seen, self.tree, self._given
        if before is now and not given:
            return
        self._seen, self._given, now_s = now, set(), self._now_s()
        if before is None:
            found = {name: at_s for name in self._entry_by_name if (at_s := self._edited_s(name, now_s)) > -inf}
        else:
            lost = {name for name in self._entry_by_name if now.owns_less(name, before)}
            found = dict.fromkeys(lost | (given & self._entry_by_name.keys()), now_s)
        known = {name: at_s for name, at_s in self._lost_s.items() if name in self._entry_by_name}
        self._lost_s, self._tenant_by_name = known | found, None
        for name in found:
            self._on_loss(name)

    def _edited_s(self, tenant: str, now_s: float) -> float:
        entries = [self._entry_by_name.get(seat) for seat in self.tree.path(tenant)]
        times_s = [entry.edited_s for entry in entries if entry is not None]
        return max([at_s for at_s in times_s if at_s <= now_s + _AHEAD_S], default=-inf)

    def has_outdated(self) -> bool:
        """True while jobs may count for a tenant that their namespace had before."""
        return bool(self._changed or self._outdated)

    def pop_outdated(self, jobs: Callable[[], Iterable[Job]], most: int) -> list[JobId]:
        """Return at most so many of the jobs of namespaces that changed hands. O(jobs) the first time after a change.

        `jobs`: all of them. Those that come later have their tenant already."""
        if self._changed:
            self._outdated += [job.id for job in jobs() if job.namespace in self._changed]
            self._changed.clear()
        popped, self._outdated[-most:] = self._outdated[-most:], []
        return popped

    def tenant_of(self, namespace: str) -> str:
        """The tenant of a namespace; empty without one."""
        return self._tenant_by_namespace.get(namespace, "")

    def count(self, before: Job | None, after: Job | None) -> None:
        """A job came, changed or went."""
        for job, sign in ((before, -1), (after, 1)):
            if job is not None and job.virtual_cluster:
                amounts = self._amounts_by_tenant.get(job.virtual_cluster, _NOTHING)
                self._amounts_by_tenant[job.virtual_cluster] = _added(amounts, job, sign)

    def amounts_of(self, name: str) -> TenantAmounts:
        """What the jobs of a tenant and of those below it hold and wait for. O(those below it)."""
        sums = self._amounts_by_tenant.get(name, _NOTHING)
        for child in self.tree.children(name):
            sums = TenantAmounts(*[one + other for one, other in zip(sums, self.amounts_of(child), strict=True)])
        return sums

    def status_of(self, name: str, loans: TenantLoans | None = None, there: Resources | None = None) -> Json:
        """`status` of a VirtualCluster as it is now, but for the times of its conditions. Raises KeyError.

        `loans`: what it holds of arrays; None without arrays. `there`: what all nodes have; None: enough."""
        entry = self._entry_by_name[name]
        gpus, gpus_asked, cpu_m, cpu_m_asked, running, waiting = self.amounts_of(name)
        seat = self.tree.seat(name)
        lending: Json = {}
        if loans is not None:
            lending["arrays"] = {
                "fromCPUArray": quantity_from_milli(loans.of_cpu_array_m),
                "fromGPUArray": quantity_from_milli(loans.of_gpu_array_m),
            }
        return {
            "observedGeneration": entry.generation,
            "path": "/".join(one for one in self.tree.path(name) if not one.endswith("/")),
            "gpus": {
                "used": gpus,
                "own": seat.own_gpus,
                "borrowed": max(0, gpus - seat.own_gpus),
                "waiting": gpus_asked,
            },
            "cpus": {
                "used": quantity_from_milli(cpu_m),
                "own": quantity_from_milli(seat.own_cpu_m),
                "borrowed": quantity_from_milli(max(0, cpu_m - seat.own_cpu_m)),
                "waiting": quantity_from_milli(cpu_m_asked),
            },
            **lending,
            "jobs": {"running": running, "waiting": waiting},
            "conditions": [
                _overlap(self._rivals.get(name, {}), self._tenant_by_namespace, name),
                _detached(self.tree, name, has_parent=bool(entry.tenant.parent)),
                _oversubscribed(self.tree, name, there),
            ],
        }


def _entry_from_json(item: Json) -> _Entry:
    metadata, spec = item["metadata"], item["spec"]
    quota: Mapping[str, Any] = spec.get("quota") or {}
    gpus, cpus = quota.get("gpus"), quota.get("cpus")
    return _Entry(
        tenant=VirtualCluster(
            name=metadata["name"],
            gpus=None if gpus is None else int(gpus),
            cpu_m=None if cpus is None else int(cpus) * 1000,
            weight=float(spec.get("weight") or 1),
            may_borrow=spec.get("mayBorrow") is not False,
            parent=spec.get("parent") or "",
        ),
        namespaces=tuple(spec.get("namespaces") or ()),
        age=(metadata.get("creationTimestamp") or "", metadata["name"]),
        generation=int(metadata.get("generation") or 0),
        edited_s=_edited_s(metadata),
    )


def _edited_s(metadata: Mapping[str, Any]) -> float:
    """When a manager of fields of the spec last changed something, maybe a label.

    The API server sets no time if only fields go. The status has managers of its own."""
    times_s = [-inf]
    for by in metadata.get("managedFields") or ():
        if not by.get("subresource") and "f:spec" in (by.get("fieldsV1") or {}):
            try:
                times_s.append(seconds_from_time(by.get("time")))
            except InvalidInput:  # anybody who may edit the object may write anything there
                continue
    return max(times_s)


def _added(amounts: TenantAmounts, job: Job, sign: int) -> TenantAmounts:
    if is_sharer(job):  # what no quota is charged for
        return amounts
    waits = is_waiting(job)
    runs = not waits and job.placement is not None and job.phase not in FINISHED
    left = len(job.ending) + (len(job.unbound) if job.phase in FINISHED else 0)
    if not (waits or runs or left):
        return amounts
    gpus, cpu_m = job.request.gpus, 0 if job.request.gpus else job.request.cpu_m
    held = sign * (left + (job.replicas - len(job.gone) if runs else 0))
    asked = sign * job.replicas if waits else 0
    return TenantAmounts(
        gpus=amounts.gpus + gpus * held,
        waiting_gpus=amounts.waiting_gpus + gpus * asked,
        cpu_m=amounts.cpu_m + cpu_m * held,
        waiting_cpu_m=amounts.waiting_cpu_m + cpu_m * asked,
        running=amounts.running + sign * runs,
        waiting=amounts.waiting + sign * waits,
    )


def _overlap(rivals: Mapping[str, str], tenant_by_namespace: Mapping[str, str], name: str) -> Json:
    """The condition that says whether another virtual cluster names the same namespaces."""
    if not rivals:
        return {
            "type": "Overlapping",
            "status": "False",
            "reason": "Disjoint",
            "message": "no other virtual cluster names its namespaces",
        }
    namespace = min(rivals)
    message = f"{len(rivals)} of its namespaces are also another's" if len(rivals) > 1 else "one namespace is another's"
    holder = tenant_by_namespace[namespace]
    message = f"{message}: {namespace} is named by {rivals[namespace]} too, and counts for {holder}, the older"
    return {"type": "Overlapping", "status": "True", "reason": "NamedTwice", "message": message}


def _detached(tree: TenantTree, name: str, *, has_parent: bool) -> Json:
    """The condition that says whether the parent that it names counts."""
    found = tree.detached(name)
    if found is None:
        reason, message = ("InTree", "its parent counts") if has_parent else ("TopLevel", "it names no parent")
        return {"type": "Detached", "status": "False", "reason": reason, "message": message}
    return {"type": "Detached", "status": "True", "reason": found[0].value, "message": found[1]}


def _oversubscribed(tree: TenantTree, name: str, there: Resources | None) -> Json:
    """The condition that says whether its own, or that of those below it, is less than what was asked for."""
    part, short = tree.part_text(name), tree.shortage_of_children(name)
    if part is not None:
        return {"type": "Oversubscribed", "status": "True", "reason": "ParentOwnsLess", "message": part}
    if short is not None:
        return {"type": "Oversubscribed", "status": "True", "reason": "ChildrenAskForMore", "message": short}
    for kind, amount in () if there is None else ((GPUS, there.gpus), (CPU, there.cpu_m)):
        if (beyond := tree.beyond_text(kind, amount, name)) is not None:
            return {"type": "Oversubscribed", "status": "True", "reason": CLUSTER_HAS_LESS, "message": beyond}
    message = "it owns its quota, and so do those below it"
    return {"type": "Oversubscribed", "status": "False", "reason": "WithinQuota", "message": message}
