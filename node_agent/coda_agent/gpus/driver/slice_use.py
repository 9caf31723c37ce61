"""How busy each MIG slice of one device is: counters of performance monitoring (GPM), read once a round.

Hopper and later have it. It counts by GPU instance, so slices that share one are not measured apart. Nor is a slice
that has only a part of its instance's compute: its share would never reach 1. Source: NVIDIA/DCGM#138; not measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from coda_agent.gpus.devices import Instance
from coda_agent.gpus.driver import nvml
from coda_agent.gpus.driver.nvml import ENDS_ROUND, GpmSample, Handle, NvmlFailure, Trouble

LEAST_S = 0.1
"""Seconds between two samples that NVML compares."""

MOST_PERCENT = 110.0
"""Up to here a value is rounding of two clocks, and means 100; above it is none. Our choice."""

PART_OF_COMPUTE = re.compile(r"[0-9]+c\.")
"""How the profile of such a slice begins: 1c.3g.20gb. Source: NVIDIA's MIG user guide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    sample: GpmSample
    at_s: float


class SliceUse:
    """The last sample of each slice of one device, by MIG UUID."""

    def __init__(self) -> None:
        self._last: dict[str, _Taken] = {}

    def shares(
        self, handle: Handle, instances: Iterable[Instance], now_s: float
    ) -> tuple[Mapping[str, float], tuple[str, ...]]:
        """Return the busy share of each slice since the round before, 0..1, by MIG UUID; and what failed.

        A slice has none in its first round. One that fails has none, and its next round is a first. Raises NvmlFailure
        if nothing more can be asked, and UNSUPPORTED if all slices say so; then all samples are forgotten."""
        asked = measurable(instances)
        shares: dict[str, float] = {}
        failures: dict[str, NvmlFailure] = {}
        for one in asked:
            try:
                share = self._share(handle, one, now_s)
            except NvmlFailure as failure:
                failures[one.uuid] = failure
                if failure.trouble in ENDS_ROUND:
                    self.forget_all_except(())
                    raise
                continue
            if share is not None:
                shares[one.uuid] = share
        self.forget_all_except({one.uuid for one in asked} - failures.keys())
        told = [failure for failure in failures.values() if failure.trouble is not Trouble.NOTHING_NEW]
        if told and len(told) == len(asked) and all(one.trouble is Trouble.UNSUPPORTED for one in told):
            raise told[0]
        return shares, tuple(dict.fromkeys(map(str, told)))

    def forget_all_except(self, uuids: Iterable[str]) -> None:
        """Free the samples of all other slices: one with an old number is a new slice."""
        for uuid in self._last.keys() - set(uuids):
            _free(self._last.pop(uuid).sample)

    def _share(self, handle: Handle, instance: Instance, now_s: float) -> float | None:
        before = self._last.get(instance.uuid)
        if before is not None and now_s - before.at_s < LEAST_S:
            return None
        sample = nvml.new_gpm_sample()
        try:
            nvml.take_gpm_sample(handle, instance.gpu_instance, sample)
            percent = None if before is None else nvml.graphics_percent(before.sample, sample)
        except NvmlFailure:
            _free(sample)
            raise
        self._last[instance.uuid] = _Taken(sample=sample, at_s=now_s)
        if before is not None:
            _free(before.sample)
        if percent is None or not 0 <= percent <= MOST_PERCENT:  # also NaN
            return None
        return min(1.0, percent / 100)


def measurable(instances: Iterable[Instance]) -> tuple[Instance, ...]:
    """Return the slices that have a GPU instance, with all its compute, for themselves."""
    found = tuple(instances)
    count = Counter(one.gpu_instance for one in found)
    return tuple(one for one in found if count[one.gpu_instance] == 1 and not PART_OF_COMPUTE.match(one.profile))


def _free(sample: GpmSample) -> None:
    with suppress(NvmlFailure):  # of a session that has ended
        nvml.free_gpm_sample(sample)
