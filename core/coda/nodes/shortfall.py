"""What the nodes have too little of for a gang, and the reason that says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from coda.model.decision import WaitCode, WaitReason
from coda.model.job import Job, JobId
from coda.model.resources import CPU, GPUS, MEMORY, PODS
from coda.nodes.bottleneck import Side, sides_texts
from coda.wording import amounts_text, counted, numbers_of, shortage_text

_CODE_BY_RESOURCE: Final[Mapping[str, WaitCode]] = {
    GPUS: WaitCode.INSUFFICIENT_GPUS,
    CPU: WaitCode.INSUFFICIENT_CPU,
    MEMORY: WaitCode.INSUFFICIENT_MEMORY,
    PODS: WaitCode.INSUFFICIENT_PODS,
}


class Shortfall(NamedTuple):
    """What a gang lacks. Equal values give equal reasons. `name`: the bottleneck, if one resource alone is."""

    holders: tuple[JobId, ...]
    most_in_one_domain: int | None = None  # ranks; set if enough is free in all but in no domain, else the rest is set
    name: str | None = None
    scattered: bool = False  # enough of it is free in all
    sides: tuple[Side, ...] = ()  # which nodes lack what, if more than one resource is short or another one would do
    ranks: int = 0  # that fit now
    nodes: int = 0  # that hold a rank now
    matching: int = 0  # nodes in all
    blocked: int = 0  # of these
    joining: int = 0  # of the blocked ones: their GPUs are still to come
    avoided: int = 0
    stuck: int = 0  # GPU jobs that could not give back cores of the CPU array, if a CPU job waits
    over_quota: bool = False  # with this gang its tenant would hold more than its own
    short_of: str = ""  # as `name`, or the first of several that are short
    enough_of_it: bool = False  # is free in all
    others_alone: bool = False  # pods of others hold so many GPUs that no job's end helps; then there are no holders
    passes: bool = False  # nobody holds the rest: it is in flight, or held back while a device plugin starts again
    owner_text: str = ""  # why what its tenant owns is not there, if that is what is short


def reason_from_shortfall(job: Job, shortfall: Shortfall) -> WaitReason:
    """Return the reason of gangs that ask for the same as this job."""
    return _insufficient(job, shortfall) if shortfall.most_in_one_domain is None else _no_domain_fits(job, shortfall)


def never_within_text(job: Job, ranks: int, label: str, able: int, unlabelled: int) -> str:
    """Say that no empty domain of the level that a gang requires holds more than `ranks` of it.

    `able`: nodes that could hold a rank; `unlabelled`: those of them without the level's label."""
    if able == unlabelled:
        return f"{_within_text(job)}; no node that could hold a rank has the label {label}"
    lack = "lacks" if unlabelled == 1 else "lack"
    outside = f" ({unlabelled} of {able} nodes that could hold a rank {lack} the label {label})" if unlabelled else ""
    return f"{_within_text(job)}; even empty, no {job.within} holds more than {ranks}{outside}"


def _within_text(job: Job) -> str:
    return f"needs all {counted(job.replicas, 'rank')} of {amounts_text(job.request)} each within one {job.within}"


def _no_domain_fits(job: Job, shortfall: Shortfall) -> WaitReason:
    most = shortfall.most_in_one_domain or 0
    short = f"enough is free in all, but no {job.within} can hold more than {most} of them now"
    return WaitReason(
        code=WaitCode.NO_DOMAIN_FITS,
        message=f"{_within_text(job)}; {short}",
        numbers=numbers_of(ranks=job.replicas, ranks_in_one_domain=most),
        holders=shortfall.holders,
        over_quota=shortfall.over_quota,
    )


def _insufficient(job: Job, shortfall: Shortfall) -> WaitReason:
    name = shortfall.name
    clauses = [_want_text(job, shortfall.nodes, shortfall.matching, shortfall.ranks)]
    kind = "usable" if shortfall.blocked or shortfall.avoided else "matching"
    if shortfall.sides:
        clauses += sides_texts(shortfall.sides, kind)
    elif name is not None:
        clauses.append(shortage_text(name, scattered=shortfall.scattered))
    elif kind == "matching":
        clauses.append("enough of each resource is free, but not on the same nodes")
    if shortfall.joining:
        new = f"{counted(shortfall.joining, 'node')} new or back, and labelled for GPUs that are still to come"
        clauses.append(f"{new} (waited for up to 10 minutes)")
    if blocked := shortfall.blocked - shortfall.joining:
        clauses.append(f"{counted(blocked, 'node')} cordoned, not ready, under pressure or being removed")
    if shortfall.avoided:
        clauses.append(f"{counted(shortfall.avoided, 'node')} avoided after a failed attempt")
    if shortfall.stuck:
        who = counted(shortfall.stuck, "training job")
        clauses.append(f"{who} could not give back cores of the CPU array (its status.resize says why)")
    if shortfall.owner_text:
        clauses.append(shortfall.owner_text)
    clauses += _others_texts(shortfall, kind)
    return WaitReason(
        code=WaitCode.NO_USABLE_NODE
        if shortfall.blocked + shortfall.avoided == shortfall.matching
        else _CODE_BY_RESOURCE.get(name or "", WaitCode.INSUFFICIENT_RESOURCES),
        message="; ".join(clauses),
        numbers=numbers_of(
            ranks=job.replicas,
            ranks_with_room=shortfall.ranks,
            nodes_with_room=shortfall.nodes,
            nodes_matching=shortfall.matching,
        ),
        holders=shortfall.holders,
        over_quota=shortfall.over_quota,
        short_of=shortfall.short_of,
        scattered=shortfall.enough_of_it,
    )


def _others_texts(shortfall: Shortfall, kind: str) -> list[str]:
    who = "pods outside Coda, or that outlived their TrainingJob,"
    if shortfall.others_alone:
        return [f"no job's end helps: {who} hold too many GPUs"]
    are_all = not shortfall.holders and kind == "matching" and shortfall.name is not None
    text = "the rest is held back for a moment" if shortfall.passes else f"{who} hold the rest"
    return [text] if are_all else []


def _want_text(job: Job, nodes: int, matching: int, ranks: int) -> str:
    each = amounts_text(job.request)
    of_all = f"of {matching} matching nodes" if matching > 1 else "the only matching node"
    if job.replicas == 1:
        lack = f"none {of_all} has that now" if matching > 1 else f"{of_all} does not have that now"
        return f"needs {each} free on one node; {lack}"
    some = f"{nodes or 'none'} {of_all}" if matching > 1 else of_all
    held = counted(ranks, "rank") if ranks else "any" if matching > 1 else "none"
    return f"needs {counted(job.replicas, 'rank')} of {each} each; {some} can hold {held} now"
