"""CPU limits as values: parsed, computed and compared. No files."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coda.errors import InvalidInput

LEAST_QUOTA_US = 1000  # the kernel refuses less; Kubernetes has the same floor (10m)
MOST_QUOTA_US = 1 << 44  # the kernel refuses more
PERIODS_US = range(1000, 1_000_001)
DEFAULT_PERIOD_US = 100_000
SYSTEMD_STEP_US = 10_000  # of CPU time per second: 1 % of a core
US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLimit:
    """CPU time per period. Raises InvalidInput for values that no kernel holds."""

    quota_us: int | None  # None: unlimited
    period_us: int = DEFAULT_PERIOD_US

    def __post_init__(self) -> None:
        if self.period_us not in PERIODS_US:
            raise InvalidInput(f"a CPU period must be 1000 to 1000000 us, got {self.period_us}")
        if self.quota_us is not None and not LEAST_QUOTA_US <= self.quota_us <= MOST_QUOTA_US:
            raise InvalidInput(
                f"a CPU quota must be {LEAST_QUOTA_US} to {MOST_QUOTA_US} us, got {str(self.quota_us)[:30]}"
            )

    @property
    def cores(self) -> float:
        """How many cores' time it allows; infinite if unlimited."""
        return math.inf if self.quota_us is None else self.quota_us / self.period_us

    def __str__(self) -> str:
        """As in cgroup v2's `cpu.max`."""
        return f"{'max' if self.quota_us is None else self.quota_us} {self.period_us}"


def limit_from_text(text: str) -> CpuLimit:
    """Return the limit that `cpu.max` says (`max 100000`, `400000 100000`). Raises InvalidInput for anything else."""
    words = text.split()
    if len(words) != 2 or not all(word.isascii() and (word.isdigit() or word == "max") for word in words):
        raise InvalidInput(f"a CPU limit reads like 'max 100000' or '400000 100000', got {text[:80]!r}")
    quota, period = words
    if period == "max":
        raise InvalidInput(f"a CPU period is a number, got {text[:80]!r}")
    return CpuLimit(quota_us=None if quota == "max" else int(quota[:30]), period_us=int(period[:30]))


def limit_for_cores(cores: float, period_us: int) -> CpuLimit:
    """Return the limit of `cores` in an existing period, at least the kernel's minimum; infinite: unlimited.

    Raises InvalidInput for a value that is no number of cores."""
    if math.isnan(cores) or cores <= 0:
        raise InvalidInput(f"a CPU limit must be above 0 cores, got {cores}")
    if math.isinf(cores):
        return CpuLimit(quota_us=None, period_us=period_us)
    return CpuLimit(quota_us=max(LEAST_QUOTA_US, round(cores * period_us)), period_us=period_us)


def rounded_by_systemd(limit: CpuLimit) -> CpuLimit:
    """Return `limit` as the systemd driver rounds it: up to a whole 1 % of a core.

    Source: opencontainers/cgroups `systemd/common.go`."""
    if limit.quota_us is None:
        return limit
    per_s_us = limit.quota_us * US_PER_S // limit.period_us
    steps = -(-per_s_us // SYSTEMD_STEP_US)
    quota_us = max(LEAST_QUOTA_US, steps * SYSTEMD_STEP_US * limit.period_us // US_PER_S)
    return CpuLimit(quota_us=quota_us, period_us=limit.period_us)


def is_same_limit(limit: CpuLimit, wanted: CpuLimit) -> bool:
    """True if `limit` is the wanted one, as written or as systemd rounds it."""
    return limit in (wanted, rounded_by_systemd(wanted))
