"""Leader election on a coordination.k8s.io Lease.

The rules are client-go's. A holder renews every `retry_s`, by one write on the version that it wrote last. Another
candidate takes over once the record has not changed for `duration_s` on its own monotonic clock, so the clocks of two
machines are never compared; so too if the record was deleted. `held()` is false from `renew_deadline_s` after the last
renewal, before anybody may take over; also in a process that was stopped and continued, or whose machine slept.

A write may be stored though its answer comes too late. Who lost its term and finds such a record of its own leaves it
alone for longer than others wait: else a candidate at a slow API server would renew for ever what it never holds.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from coda.errors import CodaError, Conflict, InvalidInput
from coda_kube.api.client import Client, NotFound
from coda_kube.api.installed_version import installed_version
from coda_kube.api.steady_clock import boot_time_s
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_VERSION
from coda_kube.objects.quantities import micro_time_from_seconds, seconds_from_time

log = logging.getLogger(__name__)


LONGEST_S: Final = 60.0
"""A record is not believed to last longer, whatever it says: anybody may have edited it. Our choice."""

MOST_TRANSITIONS: Final = 2**31 - 2
"""The field has 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Times in seconds. `duration_s` - `renew_deadline_s` > 0 is the safety margin."""

    duration_s: float = 10.0
    renew_deadline_s: float = 6.0
    retry_s: float = 2.0


class Elector:
    """One candidate. `identity` names the replica: no two processes may have it at the same time.

    Each process is a holder of its own, so a restart is a new epoch. A Lease left behind by an earlier process of this
    replica is taken at once: that process is dead. This is done only the first time. So two processes that have one
    identity by mistake take the Lease from each other once, and not in turns."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes | None = None,
        *,
        known_epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._holder = f"{identity}_{uuid.uuid4().hex[:8]}"
        self._version = installed_version()
        self._has_held = False
        self._times = times or LeaseTimes()
        self._renewed_s = float("-inf")  # monotonic, taken before the request that renewed
        self._seen: tuple[object, ...] | None = None  # the last record seen; `_seen_s`: since when
        self._seen_s: float | None = None
        self._seen_epoch = 0  # the highest
        self._won_record: tuple[object, ...] | None = None  # of the last write of ours that was answered
        self._written: Json | None = None  # the Lease as that write left it; None: read it before the next
        self._known_epoch = known_epoch
        self._expires_s = float("inf")  # then that record is too old, unless it changes before
        self._said = ""  # why there was no answer: an outage is one line of the log
        self._left_s: float | None = None  # monotonic: when the holder before this term renewed last
        self.epoch = -1

    def held(self) -> bool:
        """True while nobody else can have taken over. Check it before every write and every answer."""
        return boot_time_s() - self._renewed_s < self._times.renew_deadline_s

    def since_last_holder_s(self) -> float | None:
        """Seconds since the last renewal before this term, by the API server's clock; None if there was none."""
        return None if self._left_s is None else boot_time_s() - self._left_s

    async def acquire(self) -> int:
        """Wait until the Lease is ours. Returns its epoch."""
        while not (won := await self._try()):
            await asyncio.sleep(self._pause_s(won))
        return self.epoch

    async def keep(self) -> None:
        """Renew the Lease until it is lost. Returns once `held()` is false or another candidate holds it."""
        renewed: bool | None = True
        while renewed is not False:
            await asyncio.sleep(self._pause_s(renewed))
            if not self.held():
                break
            renewed = await self._try()
        self._renewed_s = float("-inf")
        log.warning("lost the Lease %s", self._name)

    async def release(self) -> None:
        """Release the Lease, so that the next holder need not wait."""
        if not self.held():
            return
        self._renewed_s = float("-inf")
        try:
            lease = await self._client.get(f"{self._collection}/{self._name}")
            if lease["spec"].get("holderIdentity") == self._holder:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.replace(f"{self._collection}/{self._name}", lease)
        except CodaError as error:
            log.warning("could not release the Lease %s: %s", self._name, error)

    def _pause_s(self, answer: bool | None) -> float:
        """Time until the next try. Short without an answer: after an outage the deadline may be near.

        Another's Lease is read twice as often as it is renewed, because a renewal seen late expires late. It is also
        read at the moment when it expires, and not up to `retry_s` later."""
        usual_s = self._times.retry_s
        if answer is None:
            return usual_s / 4
        if answer:
            return max(self._renewed_s + usual_s - boot_time_s(), usual_s / 40)
        left_s = self._expires_s - boot_time_s()
        return min(usual_s / 2, max(left_s, usual_s / 40))

    def _limit_s(self) -> float:
        """How long a request may take. A try is up to two of them, and a renewal one."""
        return self._times.renew_deadline_s / 2

    async def _answer(self, request: Awaitable[Json]) -> Json:
        async with asyncio.timeout(self._limit_s()):  # wait_for may swallow a cancellation
            return await request

    async def _write(self, request: Awaitable[Json]) -> bool:
        """Send a write that makes the Lease ours. It counts from before it was sent."""
        sent_s = boot_time_s()
        return self._won(await self._answer(request), sent_s)

    async def _try(self) -> bool | None:
        """Try once: True if the Lease is ours, False if it is another's, None if the API server did not answer."""
        try:
            async with asyncio.timeout(self._times.renew_deadline_s):
                return await self._renew() or await self._try_to_hold()
        except (CodaError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            if why != self._said:
                log.info("Lease %s: %s", self._name, why)
            self._said = why
            return None

    async def _renew(self) -> bool:
        """Renew the Lease as we wrote it last, without reading it. False if it has changed since, or is not held."""
        lease, self._written = self._written, None
        if lease is None or not self.held() or not lease["metadata"].get("resourceVersion"):
            return False
        try:
            return await self._write(self._replaced(lease, self.epoch))
        except (Conflict, NotFound):
            return False

    async def _replaced(self, lease: Json, epoch: int) -> Json:
        lease["spec"] |= {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": int(self._times.duration_s),
            "leaseTransitions": epoch,
            "renewTime": micro_time_from_seconds(self._client.clock()),
        }
        lease["metadata"].setdefault("annotations", {})[ANNOTATION_VERSION] = self._version
        return await self._client.replace(f"{self._collection}/{self._name}", lease)

    async def _try_to_hold(self) -> bool:
        try:
            lease = await self._answer(self._client.get(f"{self._collection}/{self._name}"))
        except NotFound:
            return await self._make_again()
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        # An older record came back, by an edit or a restored backup: somebody else may have held the Lease since.
        is_older = _transitions(spec) < self._seen_epoch
        unanswered = holder == self._holder and _record(spec) != self._won_record
        mine = holder == self._holder and (self.held() or not (is_older or unanswered))
        is_left = self._is_left_behind(holder) and not is_older
        expired = self._expired(spec, self._times.retry_s + self._limit_s() if unanswered else 0.0)
        if not mine and holder and not is_left and not expired:
            return False
        # Somebody may have edited the record: an epoch that was seen is never given twice.
        seen = max(_transitions(spec), self._seen_epoch)
        if not mine or not self.held():  # ours again after it was lost: a term of its own
            self._left_s = self._left_at_s(spec)
            spec["acquireTime"] = micro_time_from_seconds(self._client.clock())
        lease["spec"] = spec
        return await self._write(self._replaced(lease, max(self.epoch, seen) if mine else seen + 1))

    async def _make_again(self) -> bool:
        """Create a Lease that is not there: somebody may have deleted it under a holder that goes on for a while."""
        if self.held():
            return await self._write(self._client.create(self._collection, self._new(self.epoch)))
        self._left_s = None
        self._seen_epoch = max(self._seen_epoch, self._known_epoch())
        if self._seen_epoch and not self._expired({}):
            return False
        return await self._write(self._client.create(self._collection, self._new(self._seen_epoch + 1)))

    def _left_at_s(self, spec: Json) -> float | None:
        try:
            renewed_s = seconds_from_time(spec.get("renewTime"))
        except InvalidInput:
            return None  # the year 0, which the API server stores: a wrong record keeps nobody out
        return boot_time_s() - max(0.0, self._client.clock() - renewed_s) if renewed_s else None

    def _won(self, lease: Json, sent_s: float) -> bool:
        self.epoch = self._seen_epoch = _transitions(lease["spec"])
        self._renewed_s = sent_s
        self._written = lease
        self._seen = self._won_record = _record(lease["spec"])
        self._seen_s = sent_s
        self._has_held = True
        self._said = ""
        return True

    def _is_left_behind(self, holder: str) -> bool:
        """True for the Lease of an earlier process of this replica."""
        return not self._has_held and holder != self._holder and holder.rpartition("_")[0] == self._identity

    def _expired(self, spec: Json, margin_s: float = 0.0) -> bool:
        """True once this record has not changed for its duration and the margin; a record that is not there has
        ours."""
        self._seen_epoch = max(self._seen_epoch, _transitions(spec))
        record = _record(spec) if spec else None
        now_s = boot_time_s()
        if self._seen_s is None or (record is not None and record != self._seen):
            self._seen, self._seen_s = record, now_s
        duration_s = float(spec.get("leaseDurationSeconds") or self._times.duration_s)
        self._expires_s = self._seen_s + min(duration_s, max(LONGEST_S, self._times.duration_s)) + margin_s
        return now_s >= self._expires_s

    def _new(self, epoch: int) -> Json:
        now = micro_time_from_seconds(self._client.clock())
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "annotations": {ANNOTATION_VERSION: self._version}},
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": int(self._times.duration_s),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": epoch,
            },
        }


def _record(spec: Json) -> tuple[object, ...]:
    """What every renewal changes."""
    return spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions")


def _transitions(spec: Json) -> int:
    """The epoch of a record; 0 for one that nobody can have reached: the next one could not be written."""
    value = int(spec.get("leaseTransitions") or 0)
    return value if 0 <= value < MOST_TRANSITIONS else 0


async def lead(elector: Elector, work: Callable[[], asyncio.Task[None]]) -> None:
    """Wait for the Lease and run `work` while it is held. Returns when it is lost or `work` ends."""
    await elector.acquire()
    working, keeping = work(), asyncio.ensure_future(elector.keep())
    try:
        await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, keeping):
            task.cancel()
        results = await asyncio.gather(working, keeping, return_exceptions=True)
        await elector.release()
    for result in results:
        if isinstance(result, Exception):
            raise result
