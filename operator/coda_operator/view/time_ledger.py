"""How the time of each live job goes: the account in its status, and what this process has seen since it was written.

A step writes the account with every change of the job's phase. A wait whose cause alone changes is written a little
later, so that a cluster on which all causes change at once is not written twice at once. What a killed operator has not
written counts, for the next one, as the last cause that was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from zlib import crc32

from coda.errors import InvalidInput
from coda.history.delay_causes import DelayCause, cause_in_phase, cause_of_word
from coda.history.time_spent import Doing, HeldGpus, TimeSpent, begun, counted, holding, moved_on, summed
from coda.lifecycle import Progress
from coda.model import FINISHED, Phase, PlacementState
from coda.model.decision import WaitCode
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.trial_spec import runs_trial
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds

Item = Mapping[str, Any]

SETTLE_S: Final = 10
SPREAD_S: Final = 50
"""A change of cause alone is written after SETTLE_S, and up to SPREAD_S later, by the job's uid. Our choice: a minute
of a wait at most is told of a wrong cause after a kill, and a thousand changes at once are twenty writes per second."""

_FINISHED: Final = frozenset(phase.value for phase in FINISHED)
_UNDER_WAY: Final = frozenset(phase.value for phase in Phase) - _FINISHED
_HOLDING: Final = {
    Phase.LAUNCHED: Doing.HOLDING,
    Phase.STARTING: Doing.HOLDING,
    Phase.RUNNING: Doing.RUNNING,
}
_HELD: Final = frozenset(_HOLDING.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSeen:
    """A gang as a step finds it. `live`: ranks whose bound pods may still run; None: nobody looked."""

    ranks: int
    gpus_per_rank: int
    live: int | None = None
    grace_s: float = 0.0  # so long its pods may take to end
    is_over: bool = False  # the job is deleted, and nothing of it may still run


class TimeLedger:
    """An account for each live job, by uid; of a finished one while pods of it still hold GPUs."""

    def __init__(self) -> None:
        self._by_uid: dict[str, TimeSpent] = {}
        self._seen_by_uid: dict[str, TimeSpent] = {}  # the same since this process first saw the job: for metrics
        self._unwritten_s: dict[str, float] = {}  # since when the account is not as in the status
        self._with_pods: set[str] = set()  # jobs of which this process has seen a pod that may run
        self._past: Counter[DelayCause] = Counter()  # what this process saw of jobs that are forgotten

    def see(self, uid: str, status: Item, now_s: float) -> None:
        """The job has this status now. One that is not accepted changes nothing; a finished one has its account.

        In a phase that is not known it goes on with what it did."""
        name = status.get("phase")
        if name in _FINISHED:
            self._see_finished(uid, readable_account(status), now_s)
        if name not in _UNDER_WAY:
            return
        phase = Phase(name)
        wanted = (status.get("attempt") or 1, status.get("observedGeneration"))
        doing, cause = _doing(phase, status, wanted, is_tried=runs_trial(status))
        written, known = readable_account(status), self._by_uid.get(uid)
        if written is not None and written.doing is Doing.ENDED:  # it is deleted, and had no pod left then
            doing = Doing.ENDED
        if known is None:
            known = written or begun(doing, cause, now_s)
            self._seen_by_uid[uid] = begun(doing, cause, now_s)
        elif written is not None and _is_as(written, doing, cause) and not _is_as(known, doing, cause):
            newer = written if written.since_s >= known.since_s else known  # our own write, by the moment that it says
            known = replace(newer, gpus=written.gpus)
        elif written is not None and known.gpus is None:
            known = replace(known, gpus=written.gpus)
        self._by_uid[uid] = after = moved_on(known, doing, cause, now_s)
        self._seen_by_uid[uid] = moved_on(self._seen_by_uid[uid], doing, cause, now_s)
        if after == written:
            self._unwritten_s.pop(uid, None)
        else:
            self._unwritten_s.setdefault(uid, now_s)

    def _see_finished(self, uid: str, written: TimeSpent | None, now_s: float) -> None:
        known = self._by_uid.get(uid)
        if written is None or written.gpus is None or not written.gpus.ranks:
            self.forget(uid, now_s)
            return
        self._past.update(dict(counted(self._seen_by_uid.pop(uid), now_s).waits) if uid in self._seen_by_uid else {})
        self._by_uid[uid] = known if known is not None and known.doing is Doing.ENDED else written
        if self._by_uid[uid] == written:
            self._unwritten_s.pop(uid, None)

    def _see_pods(self, uid: str, gang: GangSeen, now_s: float) -> None:
        """Of pods that had to end, these are left. Those that went unseen had their grace period at most."""
        if gang.live:
            self._with_pods.add(uid)
        known = self._by_uid.get(uid)
        if known is None or known.gpus is None or known.doing in _HELD or gang.live is None:
            return
        held, left = known.gpus, min(known.gpus.ranks, gang.live)
        at_s = now_s if uid in self._with_pods else min(now_s, held.since_s + gang.grace_s)
        if left < held.ranks:
            self._by_uid[uid] = replace(known, gpus=holding(held, left, held.gpus_per_rank, at_s))
            self._unwritten_s.setdefault(uid, now_s)

    def to_write(
        self, uid: str, before: Progress, after: Progress, status: Item, now_s: float, gang: GangSeen | None = None
    ) -> TimeSpent | None:
        """Return the account to write with a change of the job's progress, at the moment that the change has.

        If nothing else changes, it is the one that is written, until the new one is due. The account of a job that was
        refused and then edited goes on: it was its user's turn meanwhile."""
        if gang is not None:
            self._see_pods(uid, gang, now_s)
        due_s, known = self.due_s(uid), self._by_uid.get(uid) or before.spent
        is_due, is_over = due_s is not None and now_s >= due_s, gang is not None and gang.is_over
        if after.phase is None or (before.phase in FINISHED and after.completion_s == before.completion_s):
            return _with_gpus(before.spent, known, is_due=is_due)
        is_end = is_over and known is not None and known.doing is not Doing.ENDED
        if after == before and not is_due and not is_end:
            return before.spent
        wanted = (after.attempt, after.generation)
        doing, cause = _doing(after.phase, status, wanted, is_tried=after.is_tried)
        known = known or begun(doing, cause, after.queued_s or now_s)
        if is_over or (known.doing is Doing.ENDED and before.phase not in FINISHED):  # a deleted job never goes on
            doing = Doing.ENDED
        elif known.doing is Doing.ENDED:
            known = replace(known, doing=Doing.WAITING, cause=DelayCause.HOLD)
        at_s = _moment_s(before, after, now_s)
        found = moved_on(known, doing, cause, at_s)
        if gang is not None:
            found = replace(found, gpus=_gpus_after(known, doing, gang, at_s))
        if found == before.spent:
            self._unwritten_s.pop(uid, None)
        return found

    def due_s(self, uid: str) -> float | None:
        """Return when the account of a job must be written, if no other change of it is; None: it is."""
        since_s = self._unwritten_s.get(uid)
        return None if since_s is None else since_s + SETTLE_S + crc32(uid.encode()) % SPREAD_S

    def of(self, uid: str) -> TimeSpent | None:
        """Return the account of a job; None if this process has not seen it live."""
        return self._by_uid.get(uid)

    def booked_s(self, now_s: float) -> Mapping[DelayCause, int]:
        """Return all seconds that this process has seen jobs wait, by cause. They never get fewer. O(live jobs)."""
        found = Counter(self._past)
        for seen in self._seen_by_uid.values():
            found.update(dict(counted(seen, now_s).waits))
        return found

    def forget(self, uid: str, now_s: float) -> None:
        """It has ended, or it is gone."""
        self._by_uid.pop(uid, None)
        self._unwritten_s.pop(uid, None)
        self._with_pods.discard(uid)
        seen = self._seen_by_uid.pop(uid, None)
        if seen is not None:
            self._past.update(dict(counted(seen, now_s).waits))

    def forget_all(self, now_s: float) -> None:
        """Another process may change the jobs meanwhile: their accounts would miss it."""
        for uid in [*self._by_uid]:
            self.forget(uid, now_s)


def doing_in(phase: Phase) -> Doing:
    """Return what a job in this phase does with its time."""
    return Doing.ENDED if phase in FINISHED else _HOLDING.get(phase, Doing.WAITING)


def account_from_json(status: Item) -> TimeSpent | None:
    """Return `status.delays`; None if the job has none. Raises InvalidInput for one that nobody can have written."""
    found = status.get("delays")
    if not found:
        return None
    try:
        doing = Doing(found["doing"])
        waits = {cause_of_word(wait["cause"]): int(wait["seconds"]) for wait in found.get("waits") or ()}
        return TimeSpent(
            began_s=int(seconds_from_time(found["began"])),
            since_s=int(seconds_from_time(found["since"])),
            doing=doing,
            cause=cause_of_word(found.get("cause") or "") if doing is Doing.WAITING else None,
            waits=tuple(sorted(waits.items(), key=lambda wait: wait[0].value)),
            held_s=int(found.get("heldSeconds") or 0),
            run_s=int(found.get("runSeconds") or 0),
            gpus=_gpus_from_json(found),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"status.delays cannot be read: {error}") from error


def account_json(spent: TimeSpent) -> Json:
    """Return `status.delays`."""
    found: Json = {
        "began": time_from_seconds(spent.began_s),
        "since": time_from_seconds(spent.since_s),
        "doing": spent.doing.value,
        "waits": [{"cause": cause.value, "seconds": seconds} for cause, seconds in spent.waits],
        "heldSeconds": spent.held_s,
        "runSeconds": spent.run_s,
    }
    if spent.cause is not None:
        found["cause"] = spent.cause.value
    if spent.gpus is not None:
        found |= {"heldGPUSeconds": spent.gpus.gpu_s, "gpusSince": time_from_seconds(spent.gpus.since_s)}
        if spent.gpus.ranks:
            found |= {"ranksWithGPUs": spent.gpus.ranks, "gpusPerRank": spent.gpus.gpus_per_rank}
    return found


def _gpus_from_json(delays: Item) -> HeldGpus | None:
    if "gpusSince" not in delays:
        return None
    return HeldGpus(
        since_s=int(seconds_from_time(delays["gpusSince"])),
        ranks=int(delays.get("ranksWithGPUs") or 0),
        gpus_per_rank=int(delays.get("gpusPerRank") or 0),
        gpu_s=int(delays.get("heldGPUSeconds") or 0),
    )


def readable_account(status: Item) -> TimeSpent | None:
    """Return `status.delays`; None if there is none that can be read: then a new account begins."""
    try:
        return account_from_json(status)
    except InvalidInput:
        return None


def _with_gpus(written: TimeSpent | None, known: TimeSpent | None, *, is_due: bool) -> TimeSpent | None:
    """The account of a finished job: with fewer pods that hold GPUs, if it is time to write that; none is left."""
    if written is None or known is None or known.gpus is None or (known.gpus.ranks and not is_due):
        return written
    return replace(written, gpus=known.gpus)


def _gpus_after(known: TimeSpent, doing: Doing, gang: GangSeen, at_s: float) -> HeldGpus:
    """The sum of GPU-seconds of a job that does this from now on.

    An attempt keeps its size. An account without a sum, of an earlier version, had always the size of now."""
    held, was_held = known.gpus, known.doing in _HELD
    if held is None:
        held = HeldGpus(since_s=known.since_s, gpu_s=known.held_s * gang.ranks * gang.gpus_per_rank)
        held = holding(held, gang.ranks, gang.gpus_per_rank, known.since_s) if was_held else held
    if doing in _HELD:
        is_same = was_held and held.ranks
        return held if is_same else holding(held, gang.ranks, gang.gpus_per_rank, at_s)
    if was_held:
        held = summed(held, at_s)  # from its end on, pods that go unseen have their grace period
    left = held.ranks if gang.live is None else min(held.ranks, gang.live)
    return holding(held, 0 if gang.is_over else left, held.gpus_per_rank, at_s)


def _is_as(spent: TimeSpent, doing: Doing, cause: DelayCause) -> bool:
    return spent.doing is doing and (doing is not Doing.WAITING or spent.cause is cause)


def _doing(phase: Phase, status: Item, wanted: tuple[int, int | None], *, is_tried: bool) -> tuple[Doing, DelayCause]:
    """What a job does with its time, and what its wait is booked as. While its trial runs, the gang has no GPU yet.

    `wanted`: attempt and generation that count. The promise of nodes for an older one holds no more."""
    if is_tried and phase in _HOLDING:
        return Doing.WAITING, DelayCause.TRIAL
    if phase is Phase.QUEUED and status.get("phase") == phase.value and _is_unaccepted(status):
        is_quota = status.get("reason") == WaitCode.QUOTA_EXCEEDED.value
        return Doing.WAITING, DelayCause.QUOTA if is_quota else DelayCause.HOLD
    pending, placement = status.get("pending") or {}, status.get("placement") or {}
    word = pending.get("cause") or pending.get("code")
    is_current = (placement.get("attempt"), placement.get("generation")) == wanted
    is_promised = is_current and placement.get("state") == PlacementState.COMMITTED.value
    return doing_in(phase), cause_in_phase(phase, word if isinstance(word, str) else "", waits_for_nodes=is_promised)


def _is_unaccepted(status: Item) -> bool:
    """True for a queued job whose template was refused and mended since: its namespace does not admit it yet."""
    told = ((entry.get("type"), entry.get("status")) for entry in status.get("conditions") or ())
    return ("Accepted", "False") in told


def _moment_s(before: Progress, after: Progress, now_s: float) -> float:
    """When a change happened, as the status says it: so the seconds between two of its times are those booked."""
    if after.phase in FINISHED:
        return min(after.completion_s or now_s, now_s)  # earlier: the attempt ended while nobody looked
    if after.phase is Phase.LAUNCHED and before.phase is not Phase.LAUNCHED:
        return after.launch_s or now_s
    began_to_wait = after.phase is Phase.QUEUED and before.phase is not Phase.QUEUED
    if began_to_wait and after.waiting_s != before.waiting_s:  # after a trial the gang's wait goes on
        return after.waiting_s or now_s
    return now_s
