"""How far the agent may go: for a rollout in steps. Pure."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final

from coda.allocator import Tuning, TuningPhase
from coda.wording import counted

ADVISE_ONLY: Final = "AdviseOnly"
"""The reason of a tuning that names a count and does not wish for it."""


class TuneMode(StrEnum):
    """What becomes of jobs whose cores Coda is to find."""

    OFF = "off"  # nothing: they keep the cores they start with
    ADVISE = "advise"  # they are measured at these cores, and their status says which count should be tried
    ON = "on"


class ThrottleMode(StrEnum):
    """What becomes of CPU pods that take the memory bandwidth of training jobs."""

    OFF = "off"  # nothing is decided, and pods have no bandwidth groups
    OBSERVE = "observe"  # decided and logged, not done; so what follows a throttle is not seen
    ON = "on"


def within(mode: TuneMode, tuning: Tuning) -> Tuning:
    """Return the tuning as far as `mode` lets it go: with ADVISE, its first wish becomes advice."""
    if mode is not TuneMode.ADVISE or tuning.phase is not TuningPhase.WISHING or tuning.wish is None:
        return tuning
    best = None if tuning.found is None else max((point.share for point in tuning.found.curve), default=None)
    idle = "" if best is None else f"GPUs idle {1 - best:.0%}: "
    message = f"{idle}{counted(tuning.wish.cores, 'core')} per rank should be tried; agents only advise here"
    return replace(tuning, phase=TuningPhase.ADVISING, wish=None, reason=ADVISE_ONLY, message=message)
