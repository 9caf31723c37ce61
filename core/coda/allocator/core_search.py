"""The search of the allocator: from a start point to the fewest cores that keep a job's GPUs busy.

A state machine: `begin_search` gives the first count to measure; `next_search` takes a measured window and gives the
next count or the answer. In between, the caller changes the job's cores, waits until that is done, and samples GPU
utilisation for one window. Counts are cores per rank, and all ranks of a job take each step together (our choice; CODA
tuned jobs of one rank).

The start point is believed once it stands still, and a reading that no curve can have is measured again. The search
goes down first, then up. On the way down a count *holds* if it is not clearly worse: fewer cores with the same
utilisation is the better answer. On the way up it must *improve*, or end a throttling. "Clearly" means by the noise
margin of the configuration, and a move is as large as the noise lets one see. After a faint gain (within the margin),
one longer move tells a slow rise from no rise.
Source: CODA (Zhao et al., ICDCS 2020), adaptive CPU allocator; margin, strides, repeats and faint gains are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from coda.allocator.config import FULL_SHARE, CoreSearchConfig, Stride
from coda.allocator.curve import (
    CurvePoint,
    WindowReading,
    curve_with,
    curve_without,
    noise_of,
    reference_utilisation,
)
from coda.errors import InvalidInput


class Leg(Enum):
    """The part of the search that is under way."""

    START = "Start"  # the start point is being measured
    DOWN = "Down"  # fewer cores, as long as they hold
    UP = "Up"  # more cores, as long as they improve
    NARROW = "Narrow"  # halving between a count that failed and one that holds


class SearchOutcome(Enum):
    """Why the search ended."""

    FOUND = "Found"
    LIMITED = "Limited"  # utilisation rose up to the most cores available
    REFUSED = "Refused"  # the job's cores cannot be changed
    TOO_NOISY = "TooNoisy"  # more cores may help, but the noise hides it: it keeps what it had
    UNRESPONSIVE = "Unresponsive"  # its GPUs do not show what cores it needs: it keeps what it had
    UNMEASURABLE = "Unmeasurable"  # no usable GPU utilisation
    ABANDONED = "Abandoned"  # the job ended, its node was lost, a deadline passed


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLimits:
    """Cores per rank that the nodes of the job can give now, the job's own included.

    `blind`: only utilisation is known, of several GPUs, as in the reading."""

    least: int = 1
    most: int
    blind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSearch:
    """The state of a search, as the job's status has it. Raises InvalidInput for an impossible state."""

    start: int  # cores it began with
    gpus: int  # GPUs per rank; scales the strides
    floor: int = 0  # fewest cores that it may try; 0: any. A search that utilisation began takes none away
    leg: Leg = Leg.START
    trying: int  # cores to measure now
    kept: int  # fewest cores so far that keep the GPUs as busy as any count
    tight: bool = False  # it was throttled at `kept` when that was measured
    failed: int = 0  # most cores below `kept` known to be too few; 0: none
    moves: int = 0  # moves made on this leg
    refused: int | None = None  # fewest cores that were refused
    capped: bool = False  # the way up ended because no more cores were available
    silent: int = 0  # windows in a row without usable utilisation
    restless: int = 0  # windows at the start point that did not agree with the one before
    rose: bool = False  # one of them was clearly above the one before
    fell: bool = False  # one of them was clearly below
    odd: bool = False  # the last reading fits to no curve beside what is known: it is measured again
    again: int = 0  # how often it began again, since its readings fitted to no curve
    blurred: bool = False  # a gain worth having may be hidden in the noise
    curve: tuple[CurvePoint, ...] = ()  # what was measured, in order of cores

    def __post_init__(self) -> None:
        if min(self.start, self.gpus, self.trying, self.kept, self.refused or 1) < 1:
            raise InvalidInput("a search needs at least one core and one GPU everywhere")
        if (
            min(self.floor, self.failed, self.moves, self.silent, self.restless, self.again) < 0
            or self.failed >= self.kept
        ):
            raise InvalidInput("a search counts from 0, and what failed lies below what is kept")
        counts = [point.cores for point in self.curve]
        if counts != sorted(set(counts)):
            raise InvalidInput("the curve of a search must have each core count once, in order")
        if self.kept not in counts and self.leg is not Leg.START:
            raise InvalidInput(f"a search on leg {self.leg.value} cannot keep {self.kept} cores with this curve")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The cores that the job should have, and how they were found."""

    cores: int  # per rank
    outcome: SearchOutcome
    curve: tuple[CurvePoint, ...]
    start: int = 0  # cores it began with; 0: unknown

    @property
    def windows(self) -> int:
        """The number of measured windows: CODA's profiling steps."""
        return sum(point.windows for point in self.curve)

    @property
    def teaches(self) -> bool:
        """True if the job needs these cores: its owner's next jobs begin there. Else it only keeps what it had."""
        return self.outcome is SearchOutcome.FOUND or self.outcome is SearchOutcome.LIMITED


def begin_search(start_cores: int, gpus: int, limits: CoreLimits, *, floor: int = 0) -> CoreSearch:
    """Return the search that measures `start_cores` (clipped to the limits) first. `gpus`: per rank.

    `floor`: its caller lets it try no fewer cores; 0: any."""
    start = max(1, limits.least, min(start_cores, limits.most))
    return CoreSearch(start=start, gpus=max(1, gpus), floor=min(floor, start), trying=start, kept=start)


def next_search(
    search: CoreSearch, reading: WindowReading | None, limits: CoreLimits, config: CoreSearchConfig
) -> CoreSearch | SearchResult:
    """Return what to measure next, or the answer, after one window at `search.trying` cores.

    `reading`: None if utilisation could not be measured. The same count again means: measure one more window.
    The answer loses at most two noise margins (plus noise) against the best count measured. Ties: fewer cores. A blind
    reading lets it try none below its start: GPUs that wait for others in a collective seem busy with any count.
    O(counts measured). Source: CODA's search. A window without utilisation is repeated `silent_windows` times, or
    `loading_windows` times before the first that shows some (our choice)."""
    if reading is None or reading.share < config.idle_share:
        if search.silent >= (config.silent_windows if search.curve else config.loading_windows):
            return _answer(search, SearchOutcome.UNMEASURABLE)
        return replace(search, silent=search.silent + 1)
    heard = replace(search, silent=0)
    if reading.blind:
        heard = replace(heard, floor=search.start)
        limits = replace(limits, least=max(limits.least, min(search.kept, search.start)), blind=True)
    if search.leg is Leg.START:
        return _begun(heard, reading, limits, config)
    if (reading.work > 0) is not (search.curve[-1].work > 0):  # the CPU use of a rank is known no more, or only now
        is_over = search.again >= config.begins_again
        return _answer(search, SearchOutcome.ABANDONED) if is_over else _anew(search, search.kept)
    if search.again < config.begins_again and _is_odd(heard, reading, config):
        return _doubted(heard)
    fresh = curve_without(search.curve, search.trying) if search.odd else search.curve
    curve = curve_with(fresh, search.trying, reading)
    return _judge(replace(heard, odd=False, curve=curve), limits, config, reading)


def refuse(search: CoreSearch, limits: CoreLimits, config: CoreSearchConfig) -> CoreSearch | SearchResult:
    """Return what to measure next, or the answer, if `search.trying` cores are not available: refused or too late.

    On the way up, a smaller growth is tried, until the answer is what was found so far. Elsewhere the search ends with
    `kept` cores."""
    if search.leg is not Leg.UP:
        return _answer(search, SearchOutcome.REFUSED)
    return _up(replace(search, refused=search.trying), limits, config)


def abandon(search: CoreSearch) -> SearchResult:
    """Return the best count so far, for a search that cannot go on; the start point if nothing was measured."""
    return _answer(search, SearchOutcome.ABANDONED)


def _answer(search: CoreSearch, outcome: SearchOutcome) -> SearchResult:
    return SearchResult(cores=search.kept, outcome=outcome, curve=search.curve, start=search.start)


def _deafened(search: CoreSearch) -> SearchResult:
    """Return the answer of a search that can compare nothing: at least the cores that it began with."""
    return replace(_answer(search, SearchOutcome.TOO_NOISY), cores=max(search.kept, search.start))


def _ended(search: CoreSearch, limits: CoreLimits) -> SearchResult:
    """Return the answer of a search that has no count left to try.

    If half of the cores and fewer keep several GPUs as busy, down to one core each, these GPUs may only wait busily:
    then utilisation alone takes no cores away."""
    worked = any(point.work > 0 for point in search.curve)
    unanswered = search.failed == 0 and search.kept == limits.least and 2 * search.kept <= search.start
    if 1 < search.gpus <= limits.least and unanswered and not worked:
        return replace(_answer(search, SearchOutcome.UNRESPONSIVE), cores=search.start)
    if search.blurred and search.kept == search.start:
        return _answer(search, SearchOutcome.TOO_NOISY)
    if limits.blind and search.kept <= search.start:
        return replace(_answer(search, SearchOutcome.UNRESPONSIVE), cores=search.start)
    return _answer(search, SearchOutcome.LIMITED if search.capped else SearchOutcome.FOUND)


def _begun(
    search: CoreSearch, reading: WindowReading, limits: CoreLimits, config: CoreSearchConfig
) -> CoreSearch | SearchResult:
    """Go on from the start point once it is believed: a steady window, or two that agree.

    Windows that only rise or only fall are a job that warms up: the last one counts. Once they did both, their
    difference is noise, and they count together."""
    known = next(iter(search.curve), None)
    if known is None:
        first = replace(search, curve=curve_with((), search.start, reading), tight=reading.throttled)
        return _leave_start(first, limits, config) if reading.steady else replace(first, restless=1)
    apart = reading.level - known.level
    agrees = abs(apart) <= config.agreement * known.level
    moved = replace(
        search, rose=search.rose or (not agrees and apart > 0), fell=search.fell or (not agrees and apart < 0)
    )
    is_noise = moved.rose and moved.fell
    before = search.curve if agrees or is_noise else ()
    curve = curve_with(before, search.start, reading)
    moved = replace(moved, curve=curve, restless=search.restless + 1, tight=reading.throttled)
    believed = agrees or (is_noise and moved.restless >= 3) or moved.restless >= config.start_windows
    return _leave_start(moved, limits, config) if believed else moved


def _leave_start(search: CoreSearch, limits: CoreLimits, config: CoreSearchConfig) -> CoreSearch | SearchResult:
    if noise_of(search.curve) > config.deafening:
        return _deafened(search)
    return _down(replace(search, leg=Leg.DOWN), limits, config)


def _is_odd(search: CoreSearch, reading: WindowReading, config: CoreSearchConfig) -> bool:
    """True if no curve has this reading beside the kept one: more from fewer cores, or more than in proportion."""
    kept = next(point for point in search.curve if point.cores == search.kept)
    doubt = 2 * math.sqrt(reading.variance + kept.variance)
    ratio = search.trying / search.kept
    low, high = sorted((kept.level, kept.level * ratio))
    off = config.odd_margin * kept.level
    return kept.variance > 0 and not low - off - doubt <= reading.level <= high + off + doubt


def _doubted(search: CoreSearch) -> CoreSearch:
    """Measure an odd reading again; if that is odd too, what was known is not true any more: begin again.

    It begins with no fewer cores than it began with before."""
    return _anew(search, search.trying) if search.odd else replace(search, odd=True)


def _anew(search: CoreSearch, cores: int) -> CoreSearch:
    cores = max(search.start, cores)
    floor = cores if search.floor == search.start else search.floor  # one that takes no cores away still takes none
    return CoreSearch(start=cores, gpus=search.gpus, floor=floor, trying=cores, kept=cores, again=search.again + 1)


def _judge(
    search: CoreSearch, limits: CoreLimits, config: CoreSearchConfig, reading: WindowReading | None = None
) -> CoreSearch | SearchResult:
    """Compare `trying` with the best other counts; measure again while the difference is within the noise.

    `reading`: the last one at it. On the way down a count does not hold if a rank is throttled at it."""
    throttled = reading is not None and reading.throttled
    if noise_of(search.curve) > config.deafening:
        return _deafened(search)
    point = next(point for point in search.curve if point.cores == search.trying)
    best = reference_utilisation(search.curve, search.trying, config.noise_margin)
    needed = best.share * (1 + config.noise_margin if search.leg is Leg.UP else 1 - config.noise_margin)
    doubt = config.certainty * math.sqrt(point.variance + best.variance)
    if abs(point.level - needed) < doubt and point.windows <= config.extra_windows:
        return search
    if search.leg is Leg.UP and point.level + doubt > best.share * (1 + config.blur) and point.level < needed + doubt:
        search = replace(search, blurred=True)
    surely = point.level - doubt >= best.share * (1 - config.blur)
    holds = point.level >= needed and surely and not throttled and search.trying >= search.floor
    passed = point.level > needed if search.leg is Leg.UP else holds
    if search.leg is Leg.UP:
        relieved = point.level >= best.share * (1 - config.noise_margin) and _is_relieved(search, reading)
        climbed = replace(search, tight=throttled) if passed or relieved else search
        if relieved and not passed:  # what lies below is throttled, however little it loses
            climbed = replace(climbed, kept=max(one.cores for one in search.curve if one.cores < search.trying))
        return _climbed(climbed, limits, config, improved=passed or relieved, faint=point.level > best.share)
    if passed:
        held = replace(search, kept=search.trying, moves=search.moves + 1)
        return _down(held, limits, config) if search.leg is Leg.DOWN else _narrow(held, limits, config)
    lost = replace(search, failed=search.trying)
    if search.leg is Leg.DOWN and search.kept == search.start:
        return _up(replace(lost, moves=0), limits, config)
    return _narrow(lost, limits, config)


def _is_relieved(search: CoreSearch, reading: WindowReading | None) -> bool:
    """True if only `trying` ends the throttling: its CPU use is more than the kept count could give freely."""
    if not search.tight or reading is None or reading.throttled:
        return False
    return reading.used_cores >= FULL_SHARE * search.kept


def _climbed(
    search: CoreSearch, limits: CoreLimits, config: CoreSearchConfig, *, improved: bool, faint: bool
) -> CoreSearch | SearchResult:
    moved = replace(search, moves=search.moves + 1)
    if improved:
        return _up(replace(moved, failed=search.kept, kept=search.trying), limits, config)
    flat = sum(point.cores > search.kept for point in search.curve)
    allowed = config.patience + (config.faint_moves if faint else 0)
    return _up(moved, limits, config) if flat <= allowed else _narrow(moved, limits, config)


def _stride(search: CoreSearch, config: CoreSearchConfig) -> int:
    """One core shows the direction; then one per GPU, twice; then double each time. Unit: always one.

    Never less than what the noise lets one see."""
    seen = _seen(search, config)
    if config.stride is Stride.UNIT or search.moves == 0:
        return seen
    growing: int = search.gpus * 2 ** max(0, search.moves - 2)
    return max(seen, growing)


def _seen(search: CoreSearch, config: CoreSearchConfig, windows: int = 1) -> int:
    """Return how many cores' difference the noise lets one see in so many windows of each count; at least 1."""
    error = noise_of(search.curve) * math.sqrt(2 / windows)
    return max(1, min(search.kept // 2, round(config.sight * error * search.kept)))


def _down(search: CoreSearch, limits: CoreLimits, config: CoreSearchConfig) -> CoreSearch | SearchResult:
    cores = max(limits.least, search.kept - _stride(search, config))
    if cores < search.kept:
        return replace(search, leg=Leg.DOWN, trying=cores)
    if search.kept == search.start:
        return _up(replace(search, moves=0), limits, config)
    return _narrow(search, limits, config)


def _up(search: CoreSearch, limits: CoreLimits, config: CoreSearchConfig) -> CoreSearch | SearchResult:
    highest = search.curve[-1].cores
    cores = min(highest + _stride(search, config), limits.most)
    if search.refused is not None and cores >= search.refused:
        cores = (highest + search.refused) // 2
    if cores <= highest:
        return _narrow(replace(search, capped=highest == search.kept), limits, config)
    return replace(search, leg=Leg.UP, trying=cores)


def _narrow(search: CoreSearch, limits: CoreLimits, config: CoreSearchConfig) -> CoreSearch | SearchResult:
    failed = max(search.failed, limits.least - 1)
    if search.kept - failed <= _seen(search, config, 1 + config.extra_windows):
        return _ended(search, limits)
    cores = (search.kept + failed) // 2
    halved = replace(search, leg=Leg.NARROW, trying=cores)
    return _judge(halved, limits, config) if any(point.cores == cores for point in search.curve) else halved
