"""The watch over a tuned job: whether its utilisation still is what the answer was found with.

The answer's first windows confirm it, or show that it was measured while the job warmed up or paused. Later ones show
another phase of the job. A fall of the optimum shows in no window, so the search is tried again from time to time.
All of it is our choice: CODA's allocator ends with its answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from coda.allocator.config import CoreSearchConfig, WatchConfig
from coda.allocator.core_search import SearchResult
from coda.allocator.curve import WindowReading, noise_of
from coda.errors import InvalidInput


class WatchVerdict(Enum):
    """What a window says of the answer."""

    STANDS = "Stands"
    LEFT = "Left"  # its utilisation is not the answer's any more
    TRY_AGAIN = "TryAgain"  # nothing speaks against it, but it is old


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The state of a watch, as the job's status has it. Raises InvalidInput for an impossible state."""

    cores: int  # per rank, of the answer
    level: float  # of the readings that it stands for, 0..1; it follows what changes slowly
    noise: float  # standard error of one window, relative
    since_s: float  # when the answer was found
    patience: int  # windows in a row off the level that end the answer
    confirmed: bool = False  # a window after the search agreed with it
    away: int = 0  # windows in a row off the level
    tries: int = 0  # searches tried again because an answer was old
    free: bool = False  # a window since the answer was not throttled: it is not always

    def __post_init__(self) -> None:
        if self.cores < 1 or self.patience < 1 or min(self.away, self.tries) < 0:
            raise InvalidInput("a watch has at least one core and some patience, and counts from 0")
        if not 0 <= self.level <= 1 or self.noise < 0:
            raise InvalidInput(f"a watch cannot have the level {self.level} with noise {self.noise}")


def watch_over(answer: SearchResult, before: Watch | None, now_s: float, config: WatchConfig) -> Watch:
    """Return the watch over a new answer; `before`: over the answer that the search began again from.

    A search that found about the same again (a tenth, or one core) keeps the patience of the answer before, which
    grew. Tries go on being counted, whatever was found: phases in turn would take cores each hour."""
    known = [point.level for point in answer.curve]
    level = next((point.level for point in answer.curve if point.cores == answer.cores), max(known, default=0.0))
    same = before is not None and abs(before.cores - answer.cores) <= max(1, answer.cores // 10)
    return Watch(
        cores=answer.cores,
        level=level,
        noise=noise_of(answer.curve),
        since_s=now_s,
        patience=before.patience if before is not None and same else config.leave_windows,
        tries=0 if before is None else before.tries,
    )


def tried_after_s(watch: Watch, config: WatchConfig) -> float:
    """Return the age from which the answer is searched again."""
    return min(config.try_again_s * float(2**watch.tries), config.longest_try_s)


def watched(
    watch: Watch, reading: WindowReading, now_s: float, config: WatchConfig, search: CoreSearchConfig
) -> tuple[Watch, WatchVerdict]:
    """Return the watch after one more window at the answer's cores, and what follows. It is equal if all stands."""
    apart = abs(reading.level - watch.level) / watch.level if watch.level else 0.0
    margin = config.leave_margin if watch.confirmed else search.agreement
    allowed = max(margin, config.leave_errors * watch.noise)
    if reading.throttled and watch.free:
        return _full(watch, config)
    watch = watch if watch.free or reading.throttled else replace(watch, free=True)
    if apart > allowed or _is_quiet_now(watch, reading, config, search):
        return _strayed(watch, config)
    follows = apart > allowed / 2 and not (reading.throttled and reading.level < watch.level)
    level = (watch.level + reading.level) / 2 if follows or not watch.confirmed else watch.level
    stands = replace(watch, level=level, confirmed=True, away=0)
    if now_s >= watch.since_s + tried_after_s(watch, config):
        return replace(stands, tries=min(watch.tries + 1, 16)), WatchVerdict.TRY_AGAIN
    return stands, WatchVerdict.STANDS


def _full(watch: Watch, config: WatchConfig) -> tuple[Watch, WatchVerdict]:
    """Return the watch after one more window in a row in which all cores are used that were not before."""
    away = replace(watch, away=watch.away + 1, confirmed=True)
    if away.away < min(watch.patience, config.most_full_windows):
        return away, WatchVerdict.STANDS
    return replace(away, away=0, patience=min(2 * watch.patience, config.most_windows)), WatchVerdict.LEFT


def _strayed(watch: Watch, config: WatchConfig) -> tuple[Watch, WatchVerdict]:
    """Return the watch after one more window in a row off its level."""
    away = replace(watch, away=watch.away + 1)
    hasty = not watch.confirmed and watch.patience <= config.leave_windows
    if away.away < (config.first_windows if hasty else watch.patience):
        return away, WatchVerdict.STANDS
    return replace(away, away=0, patience=min(2 * watch.patience, config.most_windows)), WatchVerdict.LEFT


def _is_quiet_now(watch: Watch, reading: WindowReading, config: WatchConfig, search: CoreSearchConfig) -> bool:
    """True if the answer was found in noise that let nothing be compared, and this window has little of it."""
    if watch.noise <= search.deafening or reading.level == 0:
        return False
    return math.sqrt(reading.variance) / reading.level <= config.quiet * search.deafening
