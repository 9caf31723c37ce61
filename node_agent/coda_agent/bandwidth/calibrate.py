"""Measures the peak: every core copies memory for some seconds, and the hardware's own meter counts.

The load has its own monitoring group, because shares of the peak are later measured with the same meter."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from coda.errors import InvalidInput, Outage
from coda_agent.bandwidth.idle_check import buffer_bytes_by_cpu, read_cpu_times, reason_not_idle
from coda_agent.bandwidth.peak import Peak, PeakSource
from coda_agent.host import Files
from coda_agent.resctrl import GroupOutcome, Groups, TrafficMeter

GROUP = "calibration"  # in place of a pod's uid
PERCENTILE = 0.9  # the fastest seconds are bursts, the slowest are pauses of the load
LEAST_SAMPLES = 5
LEAD_S = 2.0  # until every buffer was written once
SPARE_S = 60.0  # then a forgotten load ends by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPlan:
    """How to measure: seconds of load that count, and seconds between two samples."""

    span_s: float = 10.0
    sample_s: float = 1.0

    def __post_init__(self) -> None:
        if not (self.sample_s > 0 and self.span_s >= LEAST_SAMPLES * self.sample_s):
            raise InvalidInput(f"measuring needs at least {LEAST_SAMPLES} samples, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A clock that does not jump, waiting by it, and whether the time is over: somebody needs the node."""

    now_s: Callable[[], float]
    wait: Callable[[float], None]
    is_over: Callable[[], bool] = lambda: False


def calibrate(
    files: Files,
    groups: Groups,
    domains: tuple[int, ...],
    plan: CalibrationPlan,
    clock: Clock,
    gpu_pods: Collection[str] = (),
) -> Peak:
    """Return the peak of every domain, measured now. Nothing of the load or its group is left.

    `gpu_pods`: pods with GPUs on the node. Raises Outage with the reason if the node is not idle or cannot be measured.
    Cost: the plan's span and some seconds, on all cores of the node."""
    buffers = buffer_bytes_by_cpu(files, os.sched_getaffinity(0))
    before = read_cpu_times(files)
    clock.wait(plan.sample_s)
    reason = reason_not_idle(before, read_cpu_times(files), gpu_pods)
    if reason is not None:
        raise Outage(f"the peak bandwidth is not measured: {reason}")
    try:
        with _group(groups), _load(buffers, plan) as processes:
            outcome = groups.collect_threads(GROUP, lambda: processes)
            if outcome is not GroupOutcome.DONE:
                raise Outage(f"the peak bandwidth is not measured: the load has no group ({outcome.value})")
            rates = _rates(files, domains, plan, clock)
    except OSError as error:
        raise Outage(f"the peak bandwidth cannot be measured: {error}") from error
    return peak_from(rates, domains)


def peak_from(rates: Mapping[int, list[float]], domains: Collection[int]) -> Peak:
    """Return the 90th percentile of each domain's rates, bytes/s. Raises Outage without load or with too few
    samples."""
    for domain in sorted(domains):
        samples = rates.get(domain, [])
        if len(samples) < LEAST_SAMPLES or not high_rate(samples):
            raise Outage(f"the peak bandwidth of domain {domain} cannot be told from {len(samples)} samples")
    return Peak(
        bytes_per_s={domain: high_rate(rates[domain]) for domain in sorted(domains)}, source=PeakSource.MEASURED
    )


def high_rate(samples: list[float]) -> float:
    """Return the 90th percentile: the smallest sample that nine of ten do not exceed."""
    return sorted(samples)[math.ceil(PERCENTILE * len(samples)) - 1]


def _rates(files: Files, domains: tuple[int, ...], plan: CalibrationPlan, clock: Clock) -> Mapping[int, list[float]]:
    meter = TrafficMeter(files, domains)
    _wait(clock, LEAD_S)
    meter.sample(clock.now_s())
    rates: dict[int, list[float]] = {domain: [] for domain in domains}
    end_s = clock.now_s() + plan.span_s
    while clock.now_s() < end_s:
        _wait(clock, plan.sample_s)
        for domain, rate in meter.sample(clock.now_s()).by_pod.get(GROUP, {}).items():
            if rate is not None:
                rates[domain].append(rate)
    return rates


def _wait(clock: Clock, seconds: float) -> None:
    clock.wait(seconds)
    if clock.is_over():
        raise Outage("the peak bandwidth is not measured: somebody needs the node now")


@contextmanager
def _group(groups: Groups) -> Iterator[None]:
    outcome = groups.add_pod(GROUP)
    try:
        if outcome is not GroupOutcome.DONE:
            raise Outage(f"the peak bandwidth is not measured: no monitoring group is to be had ({outcome.value})")
        yield
    finally:
        groups.remove_pod(GROUP)


@contextmanager
def _load(buffers: Mapping[int, int], plan: CalibrationPlan) -> Iterator[frozenset[int]]:
    """One generator per core. They end with the block, with this process, and after a while by themselves."""
    seconds = LEAD_S + plan.span_s + SPARE_S
    command = [sys.executable, "-m", "coda_agent.bandwidth.load_generator"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for cpu, size in sorted(buffers.items()):
            arguments = [str(cpu), str(size), str(seconds)]
            started.append(subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL))  # noqa: S603  # our own
        yield frozenset(process.pid for process in started)
        ended = [process.pid for process in started if process.poll() is not None]
        if ended:
            raise Outage(f"the peak bandwidth is not measured: {len(ended)} of the load's processes ended early")
    finally:
        for process in started:
            process.kill()
            process.wait()
