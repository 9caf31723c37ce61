"""The tuning of one attempt: from what was measured, granted and done to what is wanted next.

The search (`core_search`) names a count. The job wishes for it, the planner grants or denies it, the operator carries
the grant out, and only then the next window counts. All of it is in the job's status, so the agent that measures may
restart between any two steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from coda.allocator.advice import advice, words_of
from coda.allocator.config import CoreSearchConfig, TuningConfig
from coda.allocator.core_search import (
    CoreLimits,
    CoreSearch,
    Leg,
    SearchOutcome,
    SearchResult,
    begin_search,
    next_search,
    refuse,
)
from coda.allocator.curve import WindowReading, curve_with
from coda.allocator.pauses import CpuPauses, pause_core_s
from coda.allocator.resize import NO_ANSWER, STATIC_CPU_MANAGER, Obstacle, Resize, ResizeState
from coda.allocator.watch import Watch, WatchVerdict, tried_after_s, watch_over, watched
from coda.allocator.window_samples import WindowResult, silence_of
from coda.model.decision import DenialCode
from coda.model.job import TAKEN_BACK, Wish, WishAnswer
from coda.wording import counted

NEVER = frozenset({"Infeasible", STATIC_CPU_MANAGER, *(obstacle.value for obstacle in Obstacle)})
"""Reasons of a refused resize that are the same for every count."""

SILENCES = frozenset({NO_ANSWER, DenialCode.EXPIRED.value})
"""Reasons that say nothing about cores: the part that should have answered was away."""


class TuningPhase(Enum):
    """What the tuning of a job does now; spelled as in the CRD."""

    MEASURING = "Measuring"  # it measures a window at the job's cores
    WISHING = "Wishing"  # it waits for a grant, or for the resize after it
    TUNED = "Tuned"  # the search has an answer, and the job has those cores
    ADVISING = "Advising"  # the cores cannot be changed: the message says what would help
    STOPPED = "Stopped"  # nothing can be measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The tuning of one attempt, as the job's status has it."""

    attempt: int
    phase: TuningPhase
    found: CoreSearch | SearchResult | None = None  # the search, or its result
    wish: Wish | None = None  # the last one
    watch: Watch | None = None  # over the last answer
    pauses: CpuPauses | None = None  # what fewer cores cost its pauses
    reason: str = ""
    message: str = ""

    @property
    def best_cores(self) -> int | None:
        """The cores per rank that the next attempt begins with; None before anything was measured.

        The fewest that keep the GPUs as busy as any count, once a window after the search agreed. Before, at least
        those of the answer before, or those of the first attempt: a search sees no evaluation that is still to come."""
        found, watch = self.found, self.watch
        if found is None or not (found.curve or (isinstance(found, CoreSearch) and (watch or found.again))):
            return None
        is_sure = watch is not None and watch.confirmed
        least = watch.cores if watch is not None and is_sure else 0 if self.pauses is None else self.pauses.cores
        return max(least, found.cores if isinstance(found, SearchResult) else found.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningInput:
    """The present state of a running job with automatic cores. `answer`, `resize`: the last ones, of any wish."""

    attempt: int
    cores: int  # per rank, that every rank has
    gpus: int  # per rank
    ranks: int = 1
    most_cores: int  # per rank, that the node of rank 0 can give; what other nodes cannot, the planner refuses
    answer: WishAnswer | None = None
    resize: Resize | None = None
    least: int = 1  # per rank, than which fewer would free none
    usual: int = 1  # cores per rank that such a job begins with if nothing is known of its owner's jobs
    served_s: float = 0.0  # how long its earlier attempts ran in all
    never: str = ""  # why its cores can never be changed, as far as its pod says: an obstacle's word; "": nothing does


def next_tuning(
    tuning: Tuning | None, job: TuningInput, measured: WindowResult | None, config: TuningConfig, now_s: float
) -> Tuning:
    """Return the next tuning; the same one if nothing follows from what is known.

    A search begins at the cores that the attempt has; what its pauses cost, and a confirmed answer, come from `tuning`
    if that is of the attempt before. One that fell silent begins again no lower. Pauses that fewer cores make too long
    end a search or an answer (`pauses`). Wishes are numbered from the last one on. A wish without an answer by its
    deadline is made once more, then counts as refused; a found count is wished for repeatedly.
    O(counts measured). Source: the allocator of CODA (ICDCS 2020); the rest is ours."""
    if tuning is None or tuning.attempt != job.attempt:
        fresh, search = _begun(tuning, job, now_s)
        return fresh if search.trying == job.cores else _after(fresh, search, job, config, now_s)
    core_s = 0.0 if measured is None else _pause_core_s(tuning, job, measured, config)
    if core_s > 0 and _counts_pauses(tuning):
        paused = _paused(tuning, job, core_s, config, now_s)
        if paused.phase is TuningPhase.WISHING:
            return paused
        tuning = paused
    if tuning.phase is TuningPhase.MEASURING and isinstance(tuning.found, CoreSearch):
        return _measured(tuning, tuning.found, job, measured, config, now_s)
    if tuning.phase is TuningPhase.WISHING and tuning.wish is not None and tuning.found is not None:
        return _answered(tuning, tuning.wish, job, config, now_s)
    if tuning.phase is TuningPhase.TUNED and isinstance(tuning.found, SearchResult):
        if tuning.found.cores == job.cores:
            return _watched(tuning, tuning.found, job, measured, config, now_s)
        due_s = -math.inf if tuning.wish is None else tuning.wish.since_s + config.wish_again_s
        due_s = max(due_s, _back_from_s(job, config))
        return _wishing(tuning, tuning.found, tuning.found.cores, job, config, now_s) if now_s >= due_s else tuning
    if tuning.phase is TuningPhase.STOPPED and isinstance(tuning.found, SearchResult) and measured is not None:
        return _heard_again(tuning, tuning.found, job, measured, config, now_s)
    return tuning


def _begun(before: Tuning | None, job: TuningInput, now_s: float) -> tuple[Tuning, CoreSearch]:
    cores, gpus = max(job.cores, job.usual), job.gpus * job.ranks
    pauses = CpuPauses(cores=cores, since_s=now_s, gpus=gpus, rank_gpus=job.gpus, served_s=job.served_s)
    watch = None
    if before is not None and before.pauses is not None and before.pauses.is_of_size(job.gpus, job.ranks):
        last_s = max((one.since_s for one in (before.wish, before.watch) if one is not None), default=0.0)
        pauses = before.pauses.carried(last_s, now_s, job.served_s)
        watch = before.watch if before.watch is not None and before.watch.confirmed else None
    is_sure = watch is not None and watch.cores == job.cores
    floor = min(job.cores, pauses.cores) if is_sure else 0  # tries from time to time take cores, restarts do not
    search = begin_search(job.cores, job.gpus, _limits(job, pauses.least_cores(now_s)), floor=floor)
    phase, wish = TuningPhase.MEASURING, _last_answered(job)
    return Tuning(attempt=job.attempt, phase=phase, found=search, wish=wish, watch=watch, pauses=pauses), search


def stopped(tuning: Tuning | None, attempt: int, reason: str, message: str) -> Tuning:
    """Return the tuning of a job that cannot be measured, or not any more: what was found stays."""
    phase = TuningPhase.STOPPED
    before = tuning if tuning is not None and tuning.attempt == attempt else Tuning(attempt=attempt, phase=phase)
    return replace(before, phase=phase, reason=reason, message=message)


def _back_from_s(job: TuningInput, config: TuningConfig) -> float:
    """From when on the job may ask again for cores that were taken back: whoever waited for them has them by then."""
    answer = job.answer
    taken = answer is not None and answer.code == TAKEN_BACK
    return answer.answered_s + config.wish_again_s if answer is not None and taken else -math.inf


def _last_answered(job: TuningInput) -> Wish | None:
    """Return the last wish of the attempt, from its answer. A tuning that begins again numbers its wishes above it."""
    if (last := job.answer) is None:
        return None
    return Wish(sequence=last.sequence, cores=max(1, last.cores), since_s=last.answered_s, deadline_s=last.deadline_s)


def _limits(job: TuningInput, least: int = 1) -> CoreLimits:
    """At least a core per GPU: each has a process that must run."""
    most = max(job.cores, job.most_cores)
    return CoreLimits(least=min(max(job.gpus, job.least, least), most), most=most)


def _limits_of(tuning: Tuning, search: CoreSearch, job: TuningInput, now_s: float) -> CoreLimits:
    """The limits of a search that is under way."""
    by_pauses = 1 if tuning.pauses is None else tuning.pauses.least_cores(now_s)
    return _limits(job, min(search.kept, max(search.floor, by_pauses)))


def _counts_pauses(tuning: Tuning) -> bool:
    """True if windows are measured and cores may be wished for: a job that nobody could measure gets none."""
    if tuning.phase is TuningPhase.STOPPED:
        return isinstance(tuning.found, SearchResult)
    return tuning.phase is TuningPhase.MEASURING or tuning.phase is TuningPhase.TUNED


def _pause_core_s(tuning: Tuning, job: TuningInput, measured: WindowResult, config: TuningConfig) -> float:
    known = 0.0  # of the answer's cores alone: other counts may be too few
    if tuning.phase is TuningPhase.TUNED and isinstance(tuning.found, SearchResult) and tuning.found.cores == job.cores:
        known = max((point.share for point in tuning.found.curve), default=0.0)
    return pause_core_s(measured, known, job.cores, config.tuning)


def _paused(tuning: Tuning, job: TuningInput, core_s: float, config: TuningConfig, now_s: float) -> Tuning:
    """Count what its cores held up in a pause; if it has too few for its pauses, they are the answer, and wished for.

    If nothing is measured yet, they are where the search begins."""
    pauses = tuning.pauses or CpuPauses(cores=_began_with(tuning, job), since_s=now_s)
    pauses = pauses.with_more(core_s, job.cores, now_s)
    told = tuning if pauses == tuning.pauses else replace(tuning, pauses=pauses)
    least = _limits(job, pauses.least_cores(now_s)).least
    asked_s = -math.inf if tuning.wish is None else tuning.wish.since_s + config.wish_again_s
    found = tuning.found
    if found is None or job.cores >= least or now_s < max(asked_s, _back_from_s(job, config)):
        return told
    if isinstance(found, SearchResult):
        answer = replace(found, cores=max(least, found.cores))
        return _wishing(told, answer, answer.cores, job, config, now_s)
    if found.leg is Leg.START:
        search = begin_search(least, job.gpus, _limits(job), floor=least)
        return _wishing(told, search, search.trying, job, config, now_s)
    answer = SearchResult(cores=least, outcome=SearchOutcome.FOUND, curve=found.curve, start=found.start)
    return _wishing(told, answer, answer.cores, job, config, now_s)


def _began_with(tuning: Tuning, job: TuningInput) -> int:
    """Return the cores that the attempt's tuning began with, as far as it is known."""
    if tuning.pauses is not None:
        return max(job.cores, tuning.pauses.cores)
    return max(job.cores, 1 if tuning.found is None else tuning.found.start)


def _measured(
    tuning: Tuning,
    search: CoreSearch,
    job: TuningInput,
    measured: WindowResult | None,
    config: TuningConfig,
    now_s: float,
) -> Tuning:
    if job.cores != search.trying:  # somebody else changed the cores, or a restart lost the wish
        if now_s < _back_from_s(job, config):
            return tuning
        return _wishing(tuning, search, search.trying, job, config, now_s)
    if measured is None:
        return tuning
    silence = silence_of(measured, config.tuning)
    if silence is None and (job.never or tuning.reason in NEVER):
        return _advising(tuning, search, job, measured, config.tuning)
    step = next_search(search, measured.reading, _limits_of(tuning, search, job, now_s), config.tuning)
    after = _after(tuning, step, job, config, now_s)
    if silence is None:
        return after
    reason, what = silence
    if isinstance(step, CoreSearch):
        return replace(after, reason=reason, message=f"{what} in the last window: it is measured again")
    return replace(after, message=f"{what} in {counted(search.silent + 1, 'window')} one after the other")


def _after(
    tuning: Tuning, step: CoreSearch | SearchResult, job: TuningInput, config: TuningConfig, now_s: float
) -> Tuning:
    wanted = step.trying if isinstance(step, CoreSearch) else step.cores
    if wanted != job.cores:
        return _wishing(tuning, step, wanted, job, config, now_s)
    return _settled(tuning, step, config, now_s)


def _settled(tuning: Tuning, step: CoreSearch | SearchResult, config: TuningConfig, now_s: float) -> Tuning:
    """Return the tuning of a job that has the cores that `step` wants."""
    if isinstance(step, CoreSearch):
        return replace(tuning, phase=TuningPhase.MEASURING, found=step, reason="", message="")
    if step.outcome is SearchOutcome.UNMEASURABLE:
        message = tuning.message or "its GPUs could not be measured"
        return replace(tuning, phase=TuningPhase.STOPPED, found=step, reason=step.outcome.value, message=message)
    message = f"{counted(step.cores, 'core')} per rank, found in {step.windows} windows"
    if step.outcome is SearchOutcome.UNRESPONSIVE:
        message = f"its GPUs do not show what cores it needs, so it keeps {counted(step.cores, 'core')} per rank"
    if step.outcome is SearchOutcome.TOO_NOISY:
        message = f"its utilisation is too noisy to tell whether more than {counted(step.cores, 'core')} would help"
    watch = watch_over(step, tuning.watch, now_s, config.watch)
    return replace(tuning, phase=TuningPhase.TUNED, found=step, watch=watch, reason=step.outcome.value, message=message)


def _watched(
    tuning: Tuning,
    answer: SearchResult,
    job: TuningInput,
    measured: WindowResult | None,
    config: TuningConfig,
    now_s: float,
) -> Tuning:
    """Keep the answer while its windows agree with it; else search again, with no fewer cores than it had before."""
    reading = None if measured is None else measured.reading
    if reading is None or reading.share < config.tuning.idle_share:
        return tuning
    if any((point.work > 0) is not (reading.work > 0) for point in answer.curve):  # not to be compared
        return tuning
    watch = tuning.watch or watch_over(answer, None, now_s, config.watch)
    after, verdict = watched(watch, reading, now_s, config.watch, config.tuning)
    if verdict is WatchVerdict.STANDS:
        return replace(tuning, watch=after)
    if verdict is WatchVerdict.TRY_AGAIN:
        best = max((point.level for point in answer.curve), default=0.0)
        is_slow = reading.level < best * (1 - config.watch.leave_margin)
        if is_slow and now_s < watch.since_s + 2 * tried_after_s(watch, config.watch):  # in a slow phase few would do
            return replace(tuning, watch=replace(after, tries=watch.tries))
        return _again(replace(tuning, watch=after), answer.cores, job, reading, config, now_s)
    if after.confirmed and measured is not None and measured.held_up is False:  # more cores would not help
        return replace(tuning, watch=replace(watch, level=reading.level, away=0))
    cores = answer.cores if after.confirmed else max(answer.cores, answer.start)
    floor = answer.cores if after.confirmed else 0
    return _again(replace(tuning, watch=after), cores, job, reading, config, now_s, floor=floor)


def _heard_again(
    tuning: Tuning, answer: SearchResult, job: TuningInput, measured: WindowResult, config: TuningConfig, now_s: float
) -> Tuning:
    """Search again once the GPUs of a job that fell silent work again: it may have evaluated for long."""
    reading = measured.reading
    if answer.outcome is not SearchOutcome.UNMEASURABLE or reading is None:
        return tuning
    if reading.share < config.tuning.idle_share:
        return tuning
    return _again(tuning, _began_with(tuning, job), job, reading, config, now_s)


def _again(
    tuning: Tuning,
    cores: int,
    job: TuningInput,
    reading: WindowReading,
    config: TuningConfig,
    now_s: float,
    *,
    floor: int = 0,
) -> Tuning:
    """Begin another search at `cores`; if the job has them, with the reading of the window that has just ended."""
    search = begin_search(cores, job.gpus, _limits(job), floor=floor)
    again = replace(tuning, phase=TuningPhase.MEASURING, found=search, reason="", message="")
    if search.trying != job.cores:
        return _wishing(again, search, search.trying, job, config, now_s)
    limits = _limits_of(again, search, job, now_s)
    return _after(again, next_search(search, reading, limits, config.tuning), job, config, now_s)


def _wishing(
    tuning: Tuning, step: CoreSearch | SearchResult, cores: int, job: TuningInput, config: TuningConfig, now_s: float
) -> Tuning:
    known = (one.sequence for one in (tuning.wish, job.answer) if one is not None)
    sequence, deadline_s = 1 + max(known, default=0), now_s + config.wish_deadline_s
    wish = Wish(sequence=sequence, cores=cores, since_s=now_s, deadline_s=deadline_s)
    return replace(tuning, phase=TuningPhase.WISHING, found=step, wish=wish, reason="", message="")


def _answered(tuning: Tuning, wish: Wish, job: TuningInput, config: TuningConfig, now_s: float) -> Tuning:
    found = tuning.found
    assert found is not None
    answer, resize = job.answer, job.resize
    if answer is not None and answer.sequence > wish.sequence:  # cores were taken back before the wish was seen
        wanted = found.trying if isinstance(found, CoreSearch) else found.cores
        return _wishing(tuning, found, wanted, job, config, now_s)
    if answer is None or answer.sequence != wish.sequence:
        late = now_s >= wish.deadline_s
        return _refused(tuning, job, NO_ANSWER, "nobody answered", config, now_s) if late else tuning
    if not answer.granted:
        most = replace(job, most_cores=answer.cores)
        return _refused(tuning, most, answer.code, answer.message, config, now_s)
    if resize is None or resize.sequence != wish.sequence or not resize.has_ended:
        return tuning
    if resize.state is ResizeState.DONE:
        return _settled(tuning, found, config, now_s)
    if resize.reason in NEVER:
        return _once_more(tuning, job, resize)
    return _refused(tuning, job, resize.reason, resize.message, config, now_s)


def _refused(tuning: Tuning, job: TuningInput, reason: str, why: str, config: TuningConfig, now_s: float) -> Tuning:
    found = tuning.found
    if isinstance(found, CoreSearch):
        if reason in SILENCES and tuning.reason not in SILENCES:
            again = _wishing(tuning, found, found.trying, job, config, now_s)
            return replace(again, reason=reason, message=f"asked again: {why}")
        step = refuse(found, _limits_of(tuning, found, job, now_s), config.tuning)
        if found.leg is Leg.START and found.trying != job.cores:  # it begins with what it has
            step = replace(begin_search(job.cores, job.gpus, _limits(job), floor=found.floor), again=found.again)
        return _after(tuning, step, job, config, now_s)
    assert found is not None
    message = f"{counted(found.cores, 'core')} per rank would do, but it keeps {job.cores}: {why}"
    return replace(tuning, phase=TuningPhase.TUNED, reason=reason, message=message)


def _advising(
    tuning: Tuning, search: CoreSearch, job: TuningInput, measured: WindowResult, config: CoreSearchConfig
) -> Tuning:
    """Return the advice for a job whose cores can never be changed, and the one point that was measured."""
    assert measured.reading is not None
    why = words_of(job.never) if job.never else tuning.message
    return replace(
        tuning,
        phase=TuningPhase.ADVISING,
        found=replace(search, curve=curve_with((), search.trying, measured.reading)),
        reason=job.never or tuning.reason,
        message=advice(measured, why, config),
    )


def _once_more(tuning: Tuning, job: TuningInput, resize: Resize) -> Tuning:
    """Measure one window for the advice: the cores can never be changed, which only the resize has shown."""
    search = begin_search(job.cores, job.gpus, _limits(job))
    message = resize.message or resize.reason
    return replace(tuning, phase=TuningPhase.MEASURING, found=search, reason=resize.reason, message=message)
