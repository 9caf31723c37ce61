"""What one round sees of a rank, and the looks of one window of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from coda.allocator import CoreSearchConfig
from coda.allocator.window_samples import Look, WindowResult, is_at_limit, result_of_window

ROUNDED_CORES: Final = 0.011
"""A limit may differ so much from its whole cores: systemd rounds up to a hundredth of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningObservation:
    """What one round saw of a rank's GPUs. `share` None: not measured, for the reason `why_not` if it is known.

    `at_s`: on the clock that never jumps; `wall_s`: since 1970. `may_step`: the job is surely as it was read, and the
    next step can be written. If not, no step is taken and the window stays open."""

    at_s: float
    wall_s: float
    container: str  # another one means a restart
    share: float | None
    cpu_cores: float | None = None  # that its main container used; None: not measured
    throttled_share: float = 0.0  # of its CPU periods
    cores: float | None = None  # that the kernel lets it use; infinite: all; None: not known, so its status is believed
    disturbed_at_s: float | None = None  # when contention or a neighbour last moved utilisations where it works
    why_not: str | None = None
    may_step: bool = True


@dataclass(slots=True)
class RankWindow:
    """The looks at one rank while `conditions` hold. `changed`: the cores changed before it."""

    conditions: object
    began_s: float
    changed: bool
    disturbed_at_s: float | None = None  # the last time within it
    other_cores: float | None = None  # that the kernel allowed within it last, and that are not those of its conditions
    other_cores_before: float | None = None  # the same of the window before
    looks: list[Look] = field(default_factory=list)

    def look(self, seen: TuningObservation, cores: int, window_s: float) -> None:
        """Add what this round saw, unless the window has not begun or is over."""
        at_s = seen.at_s - self.began_s
        if not 0 <= at_s <= window_s:
            return
        if seen.cores is not None and abs(seen.cores - cores) > ROUNDED_CORES:
            self.other_cores = seen.cores
        self.disturbed_at_s = seen.disturbed_at_s
        if seen.share is None:
            return
        used, throttled = seen.cpu_cores, seen.throttled_share
        full = None if used is None else is_at_limit(used, throttled, cores)
        self.looks.append(Look(at_s, seen.share, full, used, throttled))

    def next(self, now_s: float, settle_s: float) -> RankWindow:
        """The window after it with the same conditions: at once, or once the cores have settled that were others."""
        if self.other_cores is None:
            return RankWindow(self.conditions, now_s, changed=False)
        return RankWindow(self.conditions, now_s + settle_s, changed=True, other_cores_before=self.other_cores)

    @property
    def last_other_cores(self) -> float | None:
        """The other cores of this window, or of the one before; None: both had those of their conditions."""
        return self.other_cores_before if self.other_cores is None else self.other_cores

    def result(self, config: CoreSearchConfig) -> WindowResult:
        """What it says: nothing if it had other cores in it, or was disturbed in the part that counts."""
        if self.other_cores is not None:
            return WindowResult(reading=None, other_cores=True)
        counts_from_s = self.began_s + (config.window_s / 2 if self.changed else 0.0)
        if self.disturbed_at_s is not None and self.disturbed_at_s >= counts_from_s:
            return WindowResult(reading=None, disturbed=True)
        return result_of_window(self.looks, config, changed=self.changed)
