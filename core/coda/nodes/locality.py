"""Locality that relaxes: how long a gang waits for nodes that are close together.

A gang prefers one domain of a level for a while, then one of the next level, then whatever it may have. It holds
nothing while it waits, and waits no longer than the closeness is expected to save it. Source: Philly (Jeon et al., ATC
2019), sections 2.1 and 5; there a gang tries for 2 to 3 min, backs off for 2 min, and relaxes after some tries.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from coda.errors import InvalidInput
from coda.model.job import Job, LocalityStep
from coda.policy.config import PolicyConfig
from coda.wording import moment_text


def locality_from_text(text: str) -> tuple[LocalityStep, ...]:
    """Read steps as people write them: `node=60,rack=300`, levels and seconds. Raises InvalidInput."""
    steps: list[LocalityStep] = []
    for part in filter(None, [part.strip() for part in text.split(",")]):
        level, _, seconds = part.partition("=")
        try:
            steps.append(LocalityStep(level.strip(), float(seconds)))
        except ValueError:
            raise InvalidInput(f"write locality as level=seconds, separated by commas, not {part!r}") from None
    return tuple(steps)


class LevelHold(NamedTuple):
    """The level whose domains alone a job may have now. Without `until_s` it does not merely prefer it."""

    level: str | None  # None: it may have any nodes
    until_s: float | None = None  # infinite: it prefers it for ever


def steps_of(job: Job, config: PolicyConfig) -> tuple[LocalityStep, ...]:
    """Return what the job prefers: its own steps, or those of the installation; a single rank prefers nothing."""
    if job.replicas == 1:
        return ()
    return job.prefers or config.locality


def hold_of(
    job: Job, since_s: float, expected_s: float, config: PolicyConfig, now_s: float, holds: Callable[[int], bool]
) -> LevelHold:
    """Return the level that a job waits for, if it has waited since `since_s` and runs for `expected_s` (0: unknown).

    All steps together last no longer than the run would take longer outside: `spread_cost` of its expected time.
    `holds`: whether one empty domain of a level, by its index, holds the gang within what it requires. A step is left
    out if none does, if nobody knows its level, and if the job requires a narrower one. The last moment of a step
    belongs to the next."""
    required = None if job.within is None else config.level_index(job.within)
    if job.within is not None and required is None:
        return LevelHold(job.within)  # nobody knows the level that it requires: it must not start
    worth_s = config.spread_cost * expected_s if expected_s > 0 else inf
    end_s = since_s
    for step in steps_of(job, config):
        level = config.level_index(step.level)
        if level is None or (required is not None and level <= required) or not holds(level):
            continue
        end_s += step.for_s
        until_s = min(end_s, since_s + worth_s)
        if now_s < until_s:
            return LevelHold(step.level, until_s)
    return LevelHold(job.within)


def hold_text(hold: LevelHold, spread_cost: float) -> str:
    """Say what a job prefers and until when, and what it would cost not to wait, as a part of its reason."""
    until = "" if hold.until_s is None or hold.until_s == inf else f" until {moment_text(hold.until_s)}"
    return f"it prefers one {hold.level}{until}, as it would run about {round(100 * spread_cost)} % slower apart"
