"""How busy each MIG slice of one device is: counters of performance monitoring (GPM), read once a round.

Hopper and later have it. It counts by GPU instance, so slices that share one are not measured apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from coda_agent.gpus.devices import Instance
from coda_agent.gpus.driver import nvml
from coda_agent.gpus.driver.nvml import GpmSample, Handle, NvmlFailure

LEAST_S = 0.1
"""Seconds between two samples that NVML compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    sample: GpmSample
    at_s: float


class SliceUse:
    """The last sample of each slice of one device, by MIG UUID."""

    def __init__(self) -> None:
        self._last: dict[str, _Taken] = {}

    def shares(self, handle: Handle, instances: Iterable[Instance], now_s: float) -> Mapping[str, float]:
        """Return the busy share of each slice since the round before, 0..1, by MIG UUID.

        A slice has none in its first round. Raises NvmlFailure, and forgets all samples: the next round is a first."""
        try:
            found = {one.uuid: self._share(handle, one, now_s) for one in alone(instances)}
        except NvmlFailure:
            self.forget_all_except(())
            raise
        self.forget_all_except(found)
        return {uuid: share for uuid, share in found.items() if share is not None}

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
        return percent / 100 if percent is not None and 0 <= percent <= 100 else None  # false for NaN


def alone(instances: Iterable[Instance]) -> tuple[Instance, ...]:
    """Return the slices that have a GPU instance for themselves."""
    found = tuple(instances)
    count = Counter(one.gpu_instance for one in found)
    return tuple(one for one in found if count[one.gpu_instance] == 1)


def _free(sample: GpmSample) -> None:
    with suppress(NvmlFailure):  # of a session that has ended
        nvml.free_gpm_sample(sample)
