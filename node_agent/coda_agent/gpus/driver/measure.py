"""One device in one round: what NVML measures of it.

A metric that the device does not offer is asked for once a minute, because a driver in trouble may refuse everything. A
metric that fails is left out this time. A lost device ends its round with NvmlFailure, and so does one that says
"unknown" while it answers nothing: its UUID proves no life, because a driver may keep that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from coda_agent.gpus.devices import GpuReading, GpuSample, Health, Instance, InstanceReading, Metric
from coda_agent.gpus.driver import nvml
from coda_agent.gpus.driver.discovery import OpenDevice, find_instances
from coda_agent.gpus.driver.nvml import ENDS_ROUND, NvmlFailure, Trouble
from coda_agent.gpus.driver.slice_use import SliceUse, measurable
from coda_agent.gpus.samples import Moment, fresh_samples, mean_share, seen_until

_T = TypeVar("_T")
ASK_AGAIN_S = 60.0  # our choice


@dataclass(slots=True, kw_only=True)
class TrackedDevice:
    """What is remembered of an open device between rounds."""

    device: OpenDevice
    ready_from_s: float  # monotonic; earlier samples are withheld
    sample_us: int  # stamp up to which samples were seen
    unmeasured: set[Metric] = field(default_factory=set)
    asked_all_s: float = float("-inf")  # when every metric was last asked for
    is_lost: bool = False  # in the last round; set by the caller
    polls: bool = False  # no sample buffer: the last period is asked for instead
    slice_use: SliceUse = field(default_factory=SliceUse)
    slice_at: dict[int, Instance] = field(default_factory=dict)  # in the last round, by place
    failures: list[str] = field(default_factory=list)  # of this round
    unknown: NvmlFailure | None = None  # the first metric's that the driver did not know in this round
    answers: bool = False  # it gave a metric in this round


def measure_device(tracked: TrackedDevice, now: Moment) -> GpuReading:
    """Measure one round. Raises NvmlFailure (LOST, UNKNOWN, CLOSED, ABSENT or OUTDATED) if nothing can be asked."""
    tracked.failures, tracked.unknown, tracked.answers = [], None, False
    if now.monotonic_s - tracked.asked_all_s >= ASK_AGAIN_S:
        tracked.unmeasured, tracked.polls, tracked.asked_all_s = set(), False, now.monotonic_s
    is_settling = now.monotonic_s < tracked.ready_from_s
    by_instance = _measure_slices(tracked, now, is_settling=is_settling)
    samples = tuple(sample for sample in _samples(tracked, now) if sample.at_s >= tracked.ready_from_s)
    processes = _ask_metric(tracked, Metric.PROCESSES, partial(nvml.processes_on, tracked.device.handle))
    memory = _ask_metric(tracked, Metric.MEMORY, partial(nvml.memory_of, tracked.device.handle))
    if tracked.unknown is not None and not tracked.answers:
        raise tracked.unknown
    return GpuReading(
        gpu=tracked.device.gpu,
        health=Health.SETTLING if is_settling else Health.READY,
        why="it was opened just now" if is_settling else "; ".join(dict.fromkeys(tracked.failures)) or None,
        samples=samples,
        share=mean_share(samples),
        memory=memory,
        by_instance=by_instance,
        processes=processes,
        unmeasured=frozenset(tracked.unmeasured),
    )


def _ask_metric(tracked: TrackedDevice, metric: Metric, question: Callable[[], _T]) -> _T | None:
    if metric in tracked.unmeasured:
        return None
    try:
        answer = question()
    except NvmlFailure as failure:
        if failure.trouble in ENDS_ROUND:
            raise
        if failure.trouble is Trouble.UNKNOWN:
            tracked.unknown = tracked.unknown or failure
        if failure.trouble is Trouble.UNSUPPORTED:
            tracked.unmeasured.add(metric)
        elif failure.trouble is not Trouble.NOTHING_NEW:
            tracked.failures.append(str(failure))
        return None
    is_of_slices = metric is Metric.UTILISATION and tracked.device.gpu.mig  # which may all have failed
    tracked.answers = tracked.answers or not is_of_slices
    return answer


def _samples(tracked: TrackedDevice, now: Moment) -> tuple[GpuSample, ...]:
    """From the driver's buffer, or polled if the device has none."""
    handle = tracked.device.handle
    if tracked.device.gpu.mig:  # only its slices are busy or idle
        return ()
    if not tracked.polls:
        tracked.sample_us = seen_until(tracked.sample_us, now)
        question = partial(nvml.utilisation_samples, handle, tracked.sample_us)
        entries = _ask_metric(tracked, Metric.UTILISATION, question) or []
        samples, tracked.sample_us = fresh_samples(entries, tracked.sample_us, now)
        if Metric.UTILISATION not in tracked.unmeasured:
            return samples
        tracked.unmeasured.discard(Metric.UTILISATION)
        tracked.polls = True
    percent = _ask_metric(tracked, Metric.UTILISATION, partial(nvml.utilisation_percent, handle))
    return (GpuSample(at_s=now.monotonic_s, share=percent / 100),) if percent is not None and percent <= 100 else ()


def _measure_slices(tracked: TrackedDevice, now: Moment, *, is_settling: bool) -> dict[str, InstanceReading]:
    """Update the device's MIG mode and slices; return what is measured of each slice."""
    device = tracked.device
    if not device.can_mig:
        return {}
    mig = bool(_is_mig(tracked))
    by_place, failures = find_instances(device, tracked.slice_at) if mig else ({}, ())
    tracked.failures += failures
    tracked.slice_at = {place: instance for place, (instance, _) in by_place.items()}
    pairs = sorted(by_place.values(), key=lambda pair: pair[0].uuid)
    if mig is not device.gpu.mig:  # what it offers changes with the mode
        tracked.unmeasured, tracked.polls = set(), False
    found = tuple(instance for instance, _ in pairs)
    shares = _slice_shares(tracked, found, now)
    counted = set() if Metric.UTILISATION in tracked.unmeasured else {one.uuid for one in measurable(found)}
    instances = tuple(replace(one, has_utilisation=one.uuid in counted) for one in found)
    if (mig, instances) != (device.gpu.mig, device.gpu.instances):
        tracked.device = replace(device, gpu=replace(device.gpu, mig=mig, instances=instances))
    known = {} if is_settling else shares
    return {one.uuid: InstanceReading(memory=memory, share=known.get(one.uuid)) for one, memory in pairs}


def _slice_shares(tracked: TrackedDevice, slices: Sequence[Instance], now: Moment) -> Mapping[str, float]:
    if not slices:
        tracked.slice_use.forget_all_except(())
        return {}
    question = partial(tracked.slice_use.shares, tracked.device.handle, slices, now.monotonic_s)
    shares, failures = _ask_metric(tracked, Metric.UTILISATION, question) or ({}, ())
    tracked.failures += failures
    tracked.answers = tracked.answers or bool(shares)
    return shares


def _is_mig(tracked: TrackedDevice) -> bool:
    try:
        return nvml.is_mig(tracked.device.handle)
    except NvmlFailure as failure:
        if failure.trouble in ENDS_ROUND:
            raise
        return tracked.device.gpu.mig
