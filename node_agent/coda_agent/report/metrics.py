"""The agent's Prometheus metrics, taken from the last window at each scrape. Dashboards rely on the names.

The gauges are of that one second. What is true of the time between two scrapes is the rate of the counters.

GPUs and pods have the labels of NVIDIA's dcgm-exporter. What was not measured has no sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coda.contention import Action, Means, ThrottleReason
from coda_agent.cluster import LocalPod, TunedJob
from coda_agent.gpus import Health, LibraryState
from coda_agent.report.gpu_rows import (
    GPU_LABELS,
    OWNER_LABELS,
    PLACE_LABELS,
    BusySeconds,
    GpuRow,
    Labels,
    gpu_labels,
    gpu_rows,
)
from coda_agent.sensor import Senses
from coda_agent.throttling import ThrottleInForce

_WINDOW_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_ROW = [*PLACE_LABELS, *OWNER_LABELS]
_POD = ["namespace", "pod", "pod_uid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWindow:
    """What a scrape shows."""

    senses: Senses
    pods: Mapping[str, LocalPod] = field(default_factory=dict)  # by uid
    peaks_bytes_per_s: Mapping[int, float] = field(default_factory=dict)  # by socket
    throttles: tuple[ThrottleInForce, ...] = ()
    pods_age_s: float = 0.0
    tuned: tuple[TunedJob, ...] = ()


class Metrics:
    """Everything that this agent counts, in `registry`."""

    def __init__(self, registry: CollectorRegistry, node: str) -> None:
        self.last_window: LastWindow | None = None
        self.busy_s: Mapping[Labels, BusySeconds] = {}  # by labels, of GPUs, slices and owners that are there
        self._actions = Counter(
            "coda_agent_actions_total", "Throttles made and released", ["means", "reason"], registry=registry
        )
        self._observed = Counter(
            "coda_agent_observed_actions_total",
            "Throttles only decided, because the agent observes",
            ["means", "reason"],
            registry=registry,
        )
        self._problems = Counter(
            "coda_agent_problems_total", "Things that did not go as wanted in a window", registry=registry
        )
        self._steps = Counter(
            "coda_agent_tuning_steps_total",
            "Changes of a job's tuning, by its phase then",
            ["phase"],
            registry=registry,
        )
        self._window_s = Histogram(
            "coda_agent_window_duration_seconds",
            "One round: measure, decide, act",
            buckets=_WINDOW_S,
            registry=registry,
        )
        self._throttle_s = Histogram(
            "coda_agent_throttle_delay_seconds",
            "From the reading of the window that decided a throttle to its being in force",
            buckets=_WINDOW_S,
            registry=registry,
        )
        self._failed_writes = Counter(
            "coda_agent_failed_writes_total", "Statuses and events the API server did not take", registry=registry
        )
        self._restores = Gauge(
            "coda_agent_restored_at_start", "Changes of an earlier agent that this one put back", registry=registry
        )
        for means in Means:  # a series that begins with its first count shows Prometheus no increase
            for reason in ThrottleReason:
                self._actions.labels(means.value, reason.value)
                self._observed.labels(means.value, reason.value)
        self._node = node
        registry.register(_LastWindowCollector(self, node))

    def show(self, window: LastWindow) -> None:
        """Show this window from now on, and add the time since the one before to the counters."""
        before = self.last_window
        passed_s = 0.0 if before is None else max(0.0, window.senses.at.monotonic_s - before.senses.at.monotonic_s)
        self.busy_s = {
            row.labels: self.busy_s.get(row.labels, BusySeconds()).after(row.share, passed_s)
            for row in _rows(window, self._node)
        }
        self.last_window = window

    def count_action(self, action: Action, *, is_done: bool) -> None:
        """Count a throttle made or released, or only decided."""
        (self._actions if is_done else self._observed).labels(action.means.value, action.reason.value).inc()

    def count_problems(self, count: int) -> None:
        """Count what did not go as decided."""
        self._problems.inc(count)

    def count_tuning_step(self, phase: str) -> None:
        """Count one step of a job's tuning."""
        self._steps.labels(phase).inc()

    def observe_round(self, seconds: float) -> None:
        """Observe the time that one round took."""
        self._window_s.observe(seconds)

    def observe_throttle(self, seconds: float) -> None:
        """Observe the time from a reading to the throttles that follow from it."""
        self._throttle_s.observe(seconds)

    def count_failed_write(self) -> None:
        """Count a write that the API server did not accept."""
        self._failed_writes.inc()

    def set_restored(self, count: int) -> None:
        """Set the number of changes that an earlier agent had left."""
        self._restores.set(count)


class _LastWindowCollector(Collector):
    def __init__(self, metrics: Metrics, node: str) -> None:
        self._metrics = metrics
        self._node = node

    def collect(self) -> Iterator[Metric]:
        window = self._metrics.last_window
        if window is None:
            return
        yield from self._gpus(window)
        yield from _bandwidth(window)
        yield from _cpu(window)
        yield from _tuning(window)
        yield from _health(window)

    def _gpus(self, window: LastWindow) -> Iterator[Metric]:
        busy = GaugeMetricFamily("coda_gpu_utilization_ratio", "Busy share of a GPU's time", labels=_ROW)
        used = GaugeMetricFamily("coda_gpu_memory_used_bytes", "Memory in use on a GPU", labels=_ROW)
        owner = GaugeMetricFamily("coda_gpu_owner", "1 for each container that was given a GPU", labels=_ROW)
        healthy = GaugeMetricFamily("coda_gpu_healthy", "1 while a GPU can be measured", labels=GPU_LABELS)
        for reading in window.senses.gpus.readings:
            healthy.add_metric(gpu_labels(reading.gpu, self._node), float(reading.health is Health.READY))
        for row in _rows(window, self._node):
            if row.share is not None:
                busy.add_metric(row.labels, row.share)
            if row.memory is not None:
                used.add_metric(row.labels, row.memory.used_bytes)
            for each in row.owners:
                owner.add_metric((*row.place, *each), 1)
        yield from (busy, used, owner, healthy, *self._busy_seconds())

    def _busy_seconds(self) -> Iterator[Metric]:
        busy = CounterMetricFamily("coda_gpu_busy_seconds", "Time in which a GPU was busy", labels=_ROW)
        measured = CounterMetricFamily("coda_gpu_measured_seconds", "Time of which that is known", labels=_ROW)
        for labels, seconds in self._metrics.busy_s.items():
            busy.add_metric(labels, seconds.busy_s)
            measured.add_metric(labels, seconds.measured_s)
        yield from (busy, measured)


def _rows(window: LastWindow, node: str) -> Iterator[GpuRow]:
    return gpu_rows(window.senses.gpus.readings, window.senses.ownerships, node)


def _pod_labels(window: LastWindow, uid: str) -> list[str]:
    pod = window.pods.get(uid)
    return ["", "", uid] if pod is None else [pod.namespace, pod.name, uid]


def _bandwidth(window: LastWindow) -> Iterator[Metric]:
    node = GaugeMetricFamily("coda_memory_bandwidth_bytes_per_second", "Memory traffic of a socket", labels=["socket"])
    peak = GaugeMetricFamily("coda_memory_bandwidth_peak_bytes_per_second", "Peak of a socket", labels=["socket"])
    pods = GaugeMetricFamily(
        "coda_pod_memory_bandwidth_bytes_per_second", "Memory traffic of a pod", labels=[*_POD, "socket"]
    )
    for socket, rate in sorted(window.senses.traffic.totals.items()):
        if rate is not None:
            node.add_metric([str(socket)], rate)
    for socket, bytes_per_s in sorted(window.peaks_bytes_per_s.items()):
        peak.add_metric([str(socket)], bytes_per_s)
    for uid, rates in sorted(window.senses.traffic.by_pod.items()):
        for socket, rate in sorted(rates.items()):
            if rate is not None:
                pods.add_metric([*_pod_labels(window, uid), str(socket)], rate)
    yield from (node, peak, pods)


def _cpu(window: LastWindow) -> Iterator[Metric]:
    used = GaugeMetricFamily("coda_pod_cpu_cores", "Cores a pod uses", labels=_POD)
    throttled = GaugeMetricFamily("coda_pod_cpu_throttled_ratio", "Periods in which its limit held it", labels=_POD)
    for uid, rates in sorted(window.senses.cpu_by_pod.items()):
        used.add_metric(_pod_labels(window, uid), rates.cores)
        throttled.add_metric(_pod_labels(window, uid), rates.throttled_share)
    yield from (used, throttled)


def _tuning(window: LastWindow) -> Iterator[Metric]:
    busy = GaugeMetricFamily(
        "coda_tuning_gpu_utilization_ratio",
        "Busy share of a job's GPUs with so many cores per rank, as its search for cores measured it",
        labels=["namespace", "trainingjob", "cores"],
    )
    for job in window.tuned:
        for point in job.tuning.found.curve if job.tuning and job.tuning.found else ():
            busy.add_metric([job.namespace, job.name, str(point.cores)], point.share)
    yield busy


def _health(window: LastWindow) -> Iterator[Metric]:
    up = GaugeMetricFamily("coda_agent_sensor_up", "1 while a sensor gives samples", labels=["sensor"])
    totals = window.senses.traffic.totals.values()
    gpus = window.senses.gpus
    measured = all(reading.health is Health.READY for reading in gpus.readings)
    up.add_metric(["nvml"], float(gpus.library is LibraryState.READY and measured))
    up.add_metric(["bandwidth"], float(bool(totals) and all(rate is not None for rate in totals)))
    up.add_metric(["cgroups"], float(bool(window.senses.cgroup_by_pod)))
    yield up
    yield GaugeMetricFamily(
        "coda_agent_pods_age_seconds", "Since the list of pods was surely right", value=min(window.pods_age_s, 1e9)
    )
    yield GaugeMetricFamily("coda_agent_throttles", "Changes of this node in force", value=len(window.throttles))
