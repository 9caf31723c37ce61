"""What would help a job whose cores cannot be changed: the sign of the gain, and no number that nobody measured."""

from __future__ import annotations

from typing import Final

from coda.allocator.config import CoreSearchConfig
from coda.allocator.resize import STATIC_CPU_MANAGER, WORDS, Obstacle
from coda.allocator.window_samples import WindowResult

_STATIC: Final = "its node gives it whole cores permanently (static CPU manager)"


def words_of(reason: str) -> str:
    """Return the clause for a reason that is known before the search: an obstacle's, or the static CPU manager."""
    return _STATIC if reason == STATIC_CPU_MANAGER else WORDS[Obstacle(reason)]


def advice(measured: WindowResult, why_not: str, config: CoreSearchConfig) -> str:
    """Return the advice after one window with a reading. `why_not`: the clause why cores cannot be changed.

    Cores hold a job up if it used them all, or was throttled, in at least half of the samples (our choice)."""
    reading = measured.reading
    assert reading is not None
    idle = f"GPUs idle {1 - reading.share:.0%}"
    if reading.share >= 1 - config.noise_margin:
        return f"{idle}: more cores would not help; they cannot be changed here: {why_not}"
    if measured.held_up is None:
        return (
            f"{idle}: whether more cores would help is unknown, since its CPU use is; they cannot be changed: {why_not}"
        )
    if measured.held_up:
        return f"{idle}, and it uses all its cores: more would help, but they cannot be changed here: {why_not}"
    return f"{idle}, but its cores do not hold it up; they cannot be changed here: {why_not}"
