"""What the cycle asks about a job, worked out once for each version of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from coda.model.capacity import withheld_shares
from coda.model.job import Job, Phase, Placement, Wish
from coda.model.live_placement import (
    growth_by_node,
    held_growth,
    is_resizing,
    live_placement,
    open_wish,
    withheld_growth,
)
from coda.model.resources import Resources


class OpenWish(NamedTuple):
    """A wish that is not answered yet."""

    wish: Wish
    growth: Mapping[str, int]  # millicores that its pods lack for the wish, by node; nodes without a lack are absent
    held: Mapping[str, int]  # those that are withheld for its search, by node: only it may have them


class JobFacts(NamedTuple):
    """Facts of one version of a job."""

    is_waiting: bool
    nodes: tuple[str, ...]  # where it holds something, once per rank
    withheld: Mapping[str, Resources]  # by node
    ranks_without_pods: int  # placed ranks without a pod that the quota's own count could see
    growth_m: int  # millicores that were granted and that no pod has yet
    open_wish: OpenWish | None
    leaving: tuple[str, ...] = ()  # where ranks still run that were stopped, or of an earlier attempt, once per rank


_WAITS: Final = JobFacts(True, (), {}, 0, 0, None)
_HOLDS_NOTHING: Final = _WAITS._replace(is_waiting=False)


def facts_of(job: Job) -> JobFacts:
    """Return the facts of this version of the job. O(ranks); O(1) for a job without placement and pods."""
    if job.placement is None and not job.unbound and not job.ending:
        return _WAITS if job.phase is Phase.QUEUED else _HOLDS_NOTHING
    placement, is_queued = live_placement(job), job.phase is Phase.QUEUED
    return JobFacts(
        is_waiting=is_queued and placement is None,
        # Without a live placement the job holds the nodes of the pods that are still there.
        nodes=_held_nodes(job, placement) if placement is not None else tuple(job.unbound.values()),
        withheld=withheld_shares(job),
        # Pods are created only while the job is queued with a placement. What is missing later is gone, not to come.
        ranks_without_pods=job.replicas - len(job.bound.union(job.unbound)) if is_queued and placement else 0,
        growth_m=sum(withheld_growth(replace(job, held_cores=0)).values()) if is_resizing(job) else 0,
        open_wish=_open_wish(job) if job.wish is not None else None,
        leaving=(_stopped_nodes(job) if placement is None and job.bound else ()) + job.ending,
    )


def _held_nodes(job: Job, placement: Placement) -> tuple[str, ...]:
    """The nodes of its ranks. The capacity of a rank that is gone counts as free at once, so the rank holds nothing."""
    if not job.gone:
        return placement.nodes
    return tuple([node for rank, node in enumerate(placement.nodes) if rank not in job.gone])


def _stopped_nodes(job: Job) -> tuple[str, ...]:
    placement = job.placement
    if placement is None or placement.attempt != job.attempt:
        return ()
    return tuple([placement.nodes[rank] for rank in sorted(job.bound - job.gone)])


def _open_wish(job: Job) -> OpenWish | None:
    wish = open_wish(job)
    return OpenWish(wish, growth_by_node(job, wish.cores), held_growth(job)) if wish is not None else None
