"""The text that `kubectl logs` shows of a simulated container, and how the query narrows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coda.errors import InvalidInput
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from coda_lab.kubelets.machine import SimPod, Stage
from coda_lab.kubelets.pods.statuses import waiting_reason

Line = tuple[float, str]  # when (seconds since 1970), text


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """The supported options of a log request."""

    follow: bool = False
    timestamps: bool = False
    tail: int | None = None  # lines
    since_s: float = 0.0  # seconds since 1970
    limit_bytes: int | None = None


def log_query(query: Mapping[str, str], *, now_s: float) -> LogQuery:
    """The query string as the API server passes it on. Raises InvalidInput."""
    try:
        since_s = seconds_from_time(query.get("sinceTime"))
        if "sinceSeconds" in query:
            since_s = now_s - int(query["sinceSeconds"])
        return LogQuery(
            follow=query.get("follow") == "true",
            timestamps=query.get("timestamps") == "true",
            tail=int(query["tailLines"]) if "tailLines" in query else None,
            since_s=since_s,
            limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
        )
    except ValueError as error:
        raise InvalidInput(f"the log query cannot be read: {error}") from error


def why_no_log(pod: SimPod, container: str) -> str | None:
    """Why there is nothing to show yet, in a kubelet's words; None if there is a log, even an empty one."""
    waiting = waiting_reason(pod)
    if waiting is None and pod.stage is not Stage.ARRIVED:
        return None
    return f'container "{container}" in pod "{pod.name}" is waiting to start: {waiting or "ContainerCreating"}'


def log_lines(pod: SimPod, container: str) -> tuple[Line, ...]:
    """Everything the container has written so far. Only the main container writes; a refused pod wrote nothing."""
    if pod.stage is Stage.REFUSED or container != pod.containers[0].name or why_no_log(pod, container):
        return ()
    if pod.behaviour.log is not None:
        return tuple((pod.started_s, line) for line in pod.behaviour.log.splitlines())
    who = f"rank {pod.rank or 0} of {pod.world_size or 1}"
    run_s = pod.behaviour.run_s
    plan = "until it is stopped" if run_s is None else f"for {run_s:g} s"
    lines = [(pod.started_s, f"{who} started on {pod.machine.name}, runs {plan}")]
    if pod.stage is Stage.ENDED:
        lasted_s = pod.ended_s - pod.started_s
        lines.append((pod.ended_s, f"{who} ended after {lasted_s:.1f} s with exit code {pod.exit_code}"))
    return tuple(lines)


def rendered(lines: Sequence[Line], query: LogQuery) -> bytes:
    """The lines the query asks for, as text."""
    chosen = [line for line in lines if line[0] >= query.since_s]
    if query.tail is not None:
        chosen = chosen[max(0, len(chosen) - query.tail) :]
    stamped = (f"{time_from_seconds(when_s)} {text}\n" if query.timestamps else f"{text}\n" for when_s, text in chosen)
    return "".join(stamped).encode()[: query.limit_bytes]
