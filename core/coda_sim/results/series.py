"""The curves of a run for plots, small enough to send from one process to another. Shares are 0..1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from coda_sim.engine.log import JobEntry, RunLog
from coda_sim.results.metrics import MeasuredSpan, cores_gained, spans, wait_s, waits_by_user
from coda_sim.results.statistics import percentile

MOST_BUCKETS = 400
QUANTILES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of curves. The times are the middles of equal buckets over the window."""

    bucket_s: float
    at_s: tuple[float, ...]
    gpu_util: tuple[float, ...]
    gpu_active: tuple[float, ...]
    cpu_active: tuple[float, ...]
    gpu_jobs_waiting: tuple[float, ...]  # how many of them, on average over each bucket
    gpu_waits_s: tuple[float, ...]  # at equal steps of the share of jobs, from 0 to 1
    cpu_waits_s: tuple[float, ...]
    wait_p99_by_user_s: tuple[tuple[str, float], ...]
    jobs_by_cores_gained: tuple[tuple[int, int], ...]


def series_of(log: RunLog, window: MeasuredSpan) -> Series:
    """Return the series of a run. O(jobs log jobs + length of the trail)."""
    bucket_s = _bucket_s(window)
    held, busy, cores = _buckets(log, window, bucket_s)
    counted = [entry for entry in log.entries if window.includes(entry.gang.row.submit_s)]
    waits = [(bool(entry.gang.gpus), wait) for entry in counted if (wait := wait_s(entry)) is not None]
    gains = Counter(cores_gained(entry) for entry in counted if entry.gang.gpus and entry.pieces)
    return Series(
        bucket_s=bucket_s,
        at_s=tuple(window.from_s + (number + 0.5) * bucket_s for number in range(len(held))),
        gpu_util=_shares(busy, log.gpus * bucket_s),
        gpu_active=_shares(held, log.gpus * bucket_s),
        cpu_active=_shares(cores, log.cores * bucket_s),
        gpu_jobs_waiting=_waiting(log.entries, window, bucket_s, len(held)),
        gpu_waits_s=_quantiles([wait for is_gpu, wait in waits if is_gpu]),
        cpu_waits_s=_quantiles([wait for is_gpu, wait in waits if not is_gpu]),
        wait_p99_by_user_s=tuple((user, percentile(of, 0.99) or 0.0) for user, of in waits_by_user(counted).items()),
        jobs_by_cores_gained=tuple(sorted(gains.items())),
    )


def _bucket_s(window: MeasuredSpan) -> float:
    """An hour; more if the number of buckets would be too large; less for short windows."""
    length_s = max(1.0, window.to_s - window.from_s)
    return max(min(3600.0, length_s / 50), length_s / MOST_BUCKETS)


def _buckets(log: RunLog, window: MeasuredSpan, bucket_s: float) -> tuple[list[float], list[float], list[float]]:
    """Unit-seconds of held GPUs, busy GPUs and held cores, by bucket."""
    count = max(1, round((window.to_s - window.from_s) / bucket_s))
    held, busy, cores = [0.0] * count, [0.0] * count, [0.0] * count
    trail = log.trail
    for index, passed_s in spans(trail, window):
        begun_s = max(trail.at_s[index], window.from_s) - window.from_s
        while passed_s > 0:
            number = min(int(begun_s / bucket_s), count - 1)
            within_s = passed_s if number == count - 1 else min(passed_s, (number + 1) * bucket_s - begun_s)
            within_s = within_s if within_s > 0 else passed_s
            held[number] += within_s * trail.held_gpus[index]
            busy[number] += within_s * trail.busy_gpus[index]
            cores[number] += within_s * trail.held_cores[index]
            begun_s, passed_s = begun_s + within_s, passed_s - within_s
    return held, busy, cores


def _waiting(entries: Sequence[JobEntry], window: MeasuredSpan, bucket_s: float, count: int) -> tuple[float, ...]:
    """How many GPU jobs wait. O(1) per wait: how many more wait from a bucket on, and the parts of buckets."""
    more, parts = [0] * (count + 1), [0.0] * (count + 1)
    for entry in entries:
        for begin_s, end_s in _waits(entry) if entry.gang.gpus else ():
            for at_s, sign in ((begin_s, 1), (end_s, -1)):
                at = min(max((at_s - window.from_s) / bucket_s, 0.0), float(count))
                more[int(at)] += sign
                parts[int(at)] -= sign * (at - int(at))
    return tuple(whole + part for whole, part in zip(accumulate(more[:-1]), parts, strict=False))


def _waits(entry: JobEntry) -> Iterator[tuple[float, float]]:
    """From submission, and from each stop, to the next start."""
    if entry.pieces:
        yield entry.gang.row.submit_s, entry.pieces[0].start_s
        for before, after in pairwise(entry.pieces):
            yield before.end_s, after.start_s


def _shares(amounts: Sequence[float], whole: float) -> tuple[float, ...]:
    return tuple(amount / whole if whole else 0.0 for amount in amounts)


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    if not values:
        return ()
    ordered = sorted(values)
    return tuple(ordered[round(step / QUANTILES * (len(ordered) - 1))] for step in range(QUANTILES + 1))
