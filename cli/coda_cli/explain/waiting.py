"""Who waits, as a cluster's objects say it: one line for each TrainingJob, and one for all waiting pods of an owner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from coda.model import Phase, WaitCode
from coda.model.resources import NOTHING, Resources
from coda.wording import amounts_text, counted, listed, moment_text
from coda_cli.output import printable
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER, GATE
from coda_kube.objects.pod_requests import pod_amounts, resources_from_amounts, resources_from_quantities
from coda_kube.objects.pods.users import user_from_json
from coda_kube.objects.quantities import seconds_from_time

Item = Mapping[str, Any]

_CODES: Final = frozenset(code.value for code in WaitCode)
PLACED: Final = "Placed"
"""The code of a job that has its nodes, and waits for others to leave them."""
RESTARTING: Final = Phase.RESTARTING.value
"""The code of a job whose last attempt has not gone yet: it is in no queue before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One line of the queue. `name`: namespace/name of a TrainingJob, namespace/kind/name of anything else."""

    name: str
    wants: str
    user: str = ""  # whom it counts for: who asked, else its namespace
    priority: int = 0
    since_s: float = 0.0
    code: str = ""
    message: str = ""
    holders: tuple[str, ...] = ()
    not_before_s: float = 0.0
    ends_s: float = 0.0  # when its Job's activeDeadlineSeconds ends it, if somebody has asked; 0: never
    pods: int = 0  # gated pods; 0 for a TrainingJob
    pod: Resources = NOTHING  # what one of these asks for
    known_as: frozenset[str] = field(default_factory=frozenset)  # `Kind/name` of the owner and of its pods

    def as_json(self) -> Json:
        """For programs."""
        return {
            "name": self.name,
            "wants": self.wants,
            "user": self.user,
            "priority": self.priority,
            "since": self.since_s,
            "code": self.code,
            "message": self.message,
            "holders": list(self.holders),
        }


def part_of_job(job: Json) -> Json:
    """Return what `queue_of` reads of a TrainingJob: all but the template of its pods, the longest part."""
    spec = {name: part for name, part in job["spec"].items() if name != "template"}
    return {"metadata": _part_of_metadata(job), "spec": spec, "status": job.get("status")}


def part_of_waiting_pod(pod: Json) -> Json | None:
    """Return what `queue_of` reads of a pod; None if the pod does not wait for Coda."""
    spec = pod["spec"]
    if not _is_gated(spec):
        return None
    kept: Json = {name: spec[name] for name in ("schedulingGates", "priority", "resources", "overhead") if name in spec}
    for kind in ("containers", "initContainers"):
        names = ("name", "resources", "ports", "restartPolicy")
        kept[kind] = [{name: one[name] for name in names if name in one} for one in spec.get(kind) or ()]
    return {"metadata": _part_of_metadata(pod), "spec": kept}


def part_of_event(event: Json) -> Json | None:
    """Return what `queue_of` reads of an event; None if it gives no reason for a wait."""
    if event.get("reason") not in _CODES:
        return None
    names = ("metadata", "reason", "message", "eventTime", "involvedObject")
    return {name: event[name] for name in names if name in event} | {"metadata": _part_of_metadata(event)}


def _part_of_metadata(item: Json) -> Json:
    metadata = item["metadata"]
    names = ("name", "namespace", "ownerReferences", "creationTimestamp")
    user = {name: text for name, text in (metadata.get("annotations") or {}).items() if name == ANNOTATION_USER}
    return {name: metadata[name] for name in names if name in metadata} | {"annotations": user}


def _is_gated(spec: Item) -> bool:
    return any(gate["name"] == GATE for gate in spec.get("schedulingGates") or ())


def queue_of(jobs: Iterable[Item], pods: Iterable[Item], events: Iterable[Item]) -> list[Waiting]:
    """Return everything that waits: higher priority first, then who has waited longest, then by name.

    The planner's policy may try them in another order: shares of users and arrays count too."""
    jobs = [*jobs]
    leaving = _leaving(jobs)
    lines = [_with_leaving(line, leaving) for job in jobs if (line := line_of(job)) is not None]
    lines += _lines_of_pods(pods, _last_said(events))
    return sorted(lines, key=lambda line: (-line.priority, line.since_s, line.name))


def _leaving(jobs: Iterable[Item]) -> dict[str, list[str]]:
    """Who was told to save and end, and until when, by the job that gets the capacity."""
    found: dict[str, list[str]] = {}
    for job in jobs:
        metadata, status = job["metadata"], job.get("status") or {}
        stop, due_s = (status.get("placement") or {}).get("stop") or {}, seconds_from_time(status.get("stopDeadline"))
        if stop.get("by") and due_s:
            who = f"{metadata['namespace']}/{metadata['name']} (told to save and end by {moment_text(due_s)})"
            found.setdefault(str(stop["by"]), []).append(who)
    return found


def _with_leaving(line: Waiting, leaving: Mapping[str, list[str]]) -> Waiting:
    """A placed job with those whose end it waits for."""
    who = leaving.get(line.name, [])
    if line.code != PLACED or not who:
        return line
    return replace(line, message=f"{line.message}, once it is left by {listed(sorted(who))}")


def line_of(job: Item) -> Waiting | None:
    """Return the line of a TrainingJob; None if it does not wait."""
    metadata, spec, status = job["metadata"], job["spec"], job.get("status") or {}
    if status.get("phase") not in (None, Phase.QUEUED.value, RESTARTING):
        return None
    request, pending = status.get("request") or {}, status.get("pending") or {}
    placement = status.get("placement")
    rank = amounts_text(resources_from_quantities(request.get("resources") or {}, pods=1)) if request else ""
    code, message = str(pending.get("code") or ""), str(pending.get("message") or "")
    if status.get("phase") == RESTARTING:
        code, message = RESTARTING, str(status.get("message") or "the pods of its last attempt end")
    elif placement:
        code, message = PLACED, f"has its place on {', '.join(sorted(set(placement['nodes'])))}"
    elif not request:
        message = str(status.get("message") or "not accepted yet")
    return Waiting(
        name=f"{metadata['namespace']}/{metadata['name']}",
        wants=f"{counted(int(spec.get('replicas') or 1), 'rank')} of {rank}" if rank else "",
        user=printable(user_from_json(metadata)),
        priority=int(request.get("priority") or 0),
        since_s=max(seconds_from_time(status.get("queuedTime")), seconds_from_time(status.get("waitingSince"))),
        code=code,
        message=printable(message),
        holders=tuple(printable(str(holder)) for holder in pending.get("holders") or ()),
        not_before_s=seconds_from_time(status.get("notBefore")),
    )


def _lines_of_pods(pods: Iterable[Item], said: Mapping[tuple[str, str], Item]) -> list[Waiting]:
    lines: dict[str, Waiting] = {}
    for pod in pods:
        metadata, spec = pod["metadata"], pod["spec"]
        if not _is_gated(spec):
            continue
        owners = metadata.get("ownerReferences") or ()
        owner = next((each for each in owners if each.get("controller")), {"kind": "Pod", "name": metadata["name"]})
        name = f"{metadata['namespace']}/{str(owner['kind']).lower()}/{owner['name']}"
        created_s = seconds_from_time(metadata.get("creationTimestamp"))
        asked = resources_from_amounts(pod_amounts(pod), pods=1)
        known = lines.get(name) or Waiting(
            name=printable(name),  # an owner's name may hold anything
            wants=amounts_text(asked),
            pod=asked,
            user=printable(user_from_json(metadata)),
            priority=int(spec.get("priority") or 0),
            since_s=created_s,
            known_as=frozenset([f"{owner['kind']}/{owner['name']}"]),
        )
        lines[name] = replace(
            known,
            pods=known.pods + 1,
            since_s=min(known.since_s, created_s),
            known_as=known.known_as | {f"Pod/{metadata['name']}"},
        )
    return [_with_reason(line, said) for line in lines.values()]


def _last_said(events: Iterable[Item]) -> dict[tuple[str, str], Item]:
    """What the planner said last about each, by namespace and `Kind/name`; of two at once, the first."""
    found: dict[tuple[str, str], Item] = {}
    for event in events:
        if event.get("reason") in _CODES:
            about = str(event["metadata"]["namespace"]), _subject_of(event)
            known = found.get(about)
            if known is None or _said_at(known) < _said_at(event):
                found[about] = event
    return found


def _said_at(event: Item) -> str:
    return str(event.get("eventTime") or "")


def _with_reason(line: Waiting, said: Mapping[tuple[str, str], Item]) -> Waiting:
    """The line with what the planner said last about it. O(its pods)."""
    wants = f"{counted(line.pods, 'pod')} of {line.wants}"
    namespace = line.name.partition("/")[0]
    of_line = [said[namespace, name] for name in sorted(line.known_as) if (namespace, name) in said]
    last = max(of_line, key=_said_at, default=None)
    if last is None:
        return replace(line, wants=wants)
    sentence = str(last.get("message", "")).removeprefix("waits: ")
    message = sentence.partition(" (pods ")[0]  # how many, the pods say better
    return replace(line, wants=wants, code=last["reason"], message=printable(message))


def _subject_of(event: Item) -> str:
    """Kind and name of what the event is about; users write events too, and the API server asks for neither."""
    about = event["involvedObject"]
    return f"{about.get('kind')}/{about.get('name')}"
