"""The referee at work: follows the cluster, keeps the suspicions, and confirms each before it accuses."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

from coda.errors import InvalidInput, Outage
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_lab.checker.capacity import Fitted, fitted_after, loads_on, overloads
from coda_lab.checker.history import History
from coda_lab.checker.invariants import suspicions_in, suspicions_of_job
from coda_lab.checker.objects import JobSeen, PodSeen, full_name, read_job, read_node, read_pod
from coda_lab.checker.report import Breach, Counts, Report
from coda_lab.checker.suspicion import Part, Suspicion
from coda_lab.checker.suspicion_clock import LOST_AFTER_S, Key, OpenSuspicions
from coda_lab.checker.tenants import TenantWatch
from coda_lab.checker.view import Scope, View
from coda_lab.checker.watch import RETRY_S, Follower, Kind, Reader, Sink, Snapshot, read_snapshot

EVALUATE_EVERY_S: Final = 0.2
WAKE_S: Final = 0.5  # allowances end without a change of the cluster
CONFIRM_EVERY_S: Final = 1.0  # a fresh list of a big cluster costs the API server work
LOOK_EVERY_S: Final = 1.0
PATIENCE_S: Final = 16.0  # one look: longer than every allowance, and a renewal of the Lease that proves it used up

_PARTS: Final[Mapping[str, Part]] = {part.value: part for part in Part}


class Checker:
    """Watches one cluster for breaches of the invariants, from its API server alone. Owned by one event loop.

    `breaches` only grows. Each trouble is in it once, until it has ended and begun again.
    """

    def __init__(self, reader: Reader, *, clock: Callable[[], float] = time.time) -> None:
        self.breaches: list[Breach] = []
        self._reader = reader
        self._clock = clock
        self._started_s = clock()
        self._view = View()
        self._history = History()
        self._tenants = TenantWatch()
        self._open = OpenSuspicions()
        self._fitted: dict[str, Fitted] = {}
        self._count: Counter[str] = Counter()
        self._unreadable: dict[str, None] = {}
        self._last_outage = ""
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        self._followers: list[Follower] = []

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Checker]:
        """Follow the cluster in the background until the block ends; then look once more at every open suspicion.

        Raises Outage or Rejected when the first lists fail. Later outages are waited for, and nobody is charged for
        them.
        """
        sink = Sink(replace=self._replace, put=self._put, drop=self._drop, outage=self._outage)
        self._followers = [Follower(self._reader, kind, sink) for kind in (Kind.LEASE, Kind.JOB, Kind.NODE, Kind.POD)]
        tenants = Follower(self._reader, Kind.TENANT, sink)
        with suppress(Rejected):  # whoever may not read them, or has none, follows the rest
            await tenants.fill()
            self._followers.append(tenants)
        for follower in self._followers:
            if follower is not tenants:
                await follower.fill()
        tasks = [asyncio.create_task(follower.follow()) for follower in self._followers]
        tasks.append(asyncio.create_task(self._judge_always()))
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._failure is not None:
            raise self._failure
        with suppress(Outage, Rejected):
            await self._judge()

    def restored(self) -> None:
        """The cluster was put back to an earlier state, by an administrator: begin again, and charge nobody for it.

        Only the history is forgotten: every state from now on is judged as always."""
        self._history = History()
        self._open.interrupted(self._clock())
        for follower in self._followers:
            follower.restart()

    async def news(self) -> None:
        """Return when there are more breaches than at the last call. Raises the error that ended the watch."""
        await self._news.wait()
        self._news.clear()
        if self._failure is not None:
            raise self._failure

    async def look(self) -> None:
        """Look once instead of watching. Returns at once if all is well, else when each suspicion was confirmed,
        dropped or cannot be judged. Raises Outage or Rejected.
        """
        began_s = self._clock()
        first: set[Key] | None = None
        while True:
            self._take(await read_snapshot(self._reader))
            await self._judge()
            pending = self._open.pending()
            first = set(pending) if first is None else first & set(pending)
            elapsed_s = self._clock() - began_s
            beyond = {suspicion.key for suspicion in self._open.unjudged()}
            if not first or elapsed_s > PATIENCE_S or (first <= beyond and elapsed_s > LOST_AFTER_S):
                return
            await asyncio.sleep(LOOK_EVERY_S)

    @property
    def counts(self) -> Counts:
        """The number of objects examined so far."""
        return Counts(**self._count, attempts=self._history.attempts, plans=self._history.plans)

    def report(self) -> Report:
        """Everything found so far."""
        notes = list(self._unreadable)
        for part in sorted({each.duty.value for each in self._open.unjudged() if each.duty is not None}):
            notes.append(
                f"nobody was seen renewing the Lease {part}: delays that are its holder's duty were not judged"
            )
        if self._last_outage:
            notes.append(f"the API server could not be watched all the time; last: {self._last_outage}")
        return Report(
            started_s=self._started_s,
            ended_s=self._clock(),
            breaches=tuple(self.breaches),
            counts=self.counts,
            notes=tuple(notes),
        )

    async def _judge_always(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAKE_S):
                    await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(EVALUATE_EVERY_S)
            confirmations = self._count["confirmations"]
            try:
                await self._judge()
            except (Outage, Rejected) as error:
                self._outage(str(error))
                await asyncio.sleep(RETRY_S)
            if self._count["confirmations"] != confirmations:
                await asyncio.sleep(CONFIRM_EVERY_S)

    async def _judge(self) -> None:
        now_s = self._clock()
        scopes, self._view.changed = self._view.changed, set()
        for scope in scopes:
            self._open.enter(scope, self._suspicions(scope), now_s)
        if scopes:
            self._count["evaluations"] += 1
            waiting = sum(job.waiting for job in self._view.jobs.values())
            self._count["most_waiting"] = max(self._count["most_waiting"], waiting)
        for breach in self._tenants.settled(now_s):
            self._found(breach)
        due = self._open.due(now_s)
        if due:
            await self._confirm(due)

    def _suspicions(self, scope: Scope) -> list[Suspicion]:
        kind, name = scope
        if kind == "job":
            return suspicions_of_job(self._view, name)
        loads = list(loads_on(self._view, name))
        before = self._fitted.get(name, {})
        self._fitted[name] = fitted_after(loads, before)
        return overloads(loads, before)

    async def _confirm(self, due: Mapping[Key, tuple[Scope, Suspicion]]) -> None:
        snapshot = await read_snapshot(self._reader)
        self._count["confirmations"] += 1
        now_s = self._clock()
        for key, (scope, _) in sorted(due.items(), key=lambda item: (item[0][0].value, item[0][1])):
            if scope[1] in snapshot.view.unsteady:
                continue  # still due: the job may be unchanged in the next list
            fresh = {each.key: each for each in suspicions_in(snapshot.view, scope, self._fitted.get(scope[1], {}))}
            confirmed = fresh.get(key)
            if confirmed is None or (confirmed.not_before_s and now_s < confirmed.not_before_s + confirmed.allowance_s):
                self._count["dropped"] += 1
                self._open.restart(key, now_s)
                self._view.changed.add(scope)  # seen together with the changes since
                continue
            self._open.report(key)
            self._found(
                Breach(
                    invariant=confirmed.invariant,
                    time_s=now_s,
                    objects=confirmed.objects,
                    sentence=confirmed.sentence,
                )
            )

    def _found(self, breach: Breach | None) -> None:
        if breach is not None:
            self.breaches.append(breach)
            self._news.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._news.set()

    def _outage(self, message: str) -> None:
        self._count["outages"] += 1
        self._last_outage = message
        self._open.interrupted(self._clock())

    def _replace(self, kind: Kind, things: list[Json]) -> None:
        known: Mapping[Kind, Iterable[str]] = {
            Kind.POD: self._view.pods,
            Kind.NODE: self._view.nodes,
            Kind.JOB: self._view.jobs,
            Kind.TENANT: self._tenants.names(),
        }
        listed = {_identity_of(kind, thing) for thing in things}
        for identity in sorted(set(known.get(kind, ())) - listed):
            self._forget(kind, identity)
        for thing in things:
            self._put(kind, thing, gap=True)

    def _put(self, kind: Kind, thing: Json, *, gap: bool = False) -> None:
        try:
            if kind is Kind.POD:
                self._put_pod(read_pod(thing))
            elif kind is Kind.JOB:
                self._put_job(read_job(thing), gap=gap)
            elif kind is Kind.NODE:
                node = read_node(thing)
                self._count["nodes"] += node.name not in self._view.nodes
                self._view.put_node(node)
            elif kind is Kind.TENANT:
                self._tenants.put(thing, self._clock())
            else:
                self._put_lease(thing)
        except InvalidInput as error:
            self._unreadable[f"{full_name(thing)} could not be read and is not judged: {error}"] = None
        self._changed.set()

    def _put_pod(self, pod: PodSeen) -> None:
        self._count["pods"] += pod.uid not in self._view.pods
        self._view.put_pod(pod)
        self._found(self._history.see_pod(pod, self._clock()))

    def _put_job(self, job: JobSeen, *, gap: bool) -> None:
        self._count["jobs"] += job.uid not in self._view.jobs
        self._view.put_job(job)
        self._found(self._history.see_job(job, self._clock(), gap=gap))
        self._found(self._tenants.see_job(job, self._clock(), gap=gap))

    def _put_lease(self, lease: Json) -> None:
        part = _PARTS.get(lease["metadata"]["name"])
        spec = lease.get("spec") or {}
        if part is not None:
            self._open.services[part].renewed(_term(spec), spec.get("renewTime") or "", self._clock())

    def _drop(self, kind: Kind, thing: Json) -> None:
        self._forget(kind, _identity_of(kind, thing))
        self._changed.set()

    def _forget(self, kind: Kind, identity: str) -> None:
        if kind is Kind.POD:
            pod = self._view.pods.get(identity)
            self._view.drop_pod(identity)
            if pod is not None and pod.member is not None:
                self._forget_history(pod.member.job_uid)
        elif kind is Kind.NODE:
            self._view.drop_node(identity)
            self._fitted.pop(identity, None)
        elif kind is Kind.JOB:
            self._view.drop_job(identity)
            self._tenants.forget_job(identity, self._clock())
            self._forget_history(identity)
        elif kind is Kind.TENANT:
            self._tenants.drop(identity, self._clock())

    def _forget_history(self, job_uid: str) -> None:
        if job_uid not in self._view.jobs and not any(self._view.pods_of(job_uid)):
            self._history.forget_job(job_uid)

    def _take(self, snapshot: Snapshot) -> None:
        view = self._view = snapshot.view
        view.changed = view.scopes() | self._open.scopes()
        now_s = self._clock()
        for pod in view.pods.values():
            self._found(self._history.see_pod(pod, now_s))
        for job in view.jobs.values():
            self._found(self._history.see_job(job, now_s, gap=True))
        for lease in snapshot.leases:
            self._put_lease(lease)
        self._unreadable |= dict.fromkeys(snapshot.unreadable)
        seen = {"nodes": len(view.nodes), "pods": len(view.pods), "jobs": len(view.jobs) + len(view.unsteady)}
        self._count |= Counter(seen)  # the larger of each


async def check_once(reader: Reader) -> list[Breach]:
    """The breaches that one look at the cluster shows; see `Checker.look`."""
    checker = Checker(reader)
    await checker.look()
    return checker.breaches


def _identity_of(kind: Kind, thing: Json) -> str:
    """Nodes and tenants are known by their names, all others by their uid."""
    return str(thing["metadata"]["name" if kind in (Kind.NODE, Kind.TENANT) else "uid"])


def _term(spec: Json) -> str:
    """Who holds a Lease, and since when; empty if nobody does."""
    holder = spec.get("holderIdentity") or ""
    return f"{holder} since {spec.get('acquireTime') or ''}" if holder else ""
