"""Which nodes are kept for a job that has waited too long, if the price of its promise allows it.

Of jobs that share nodes the first in line is asked, see `hold`.

The nodes are those where the job can start first. They are kept once what this is expected to keep idle is within what
is left of the price, and until the price is used up. Until then, and from then on, others may overtake the job; its
price grows while it waits. So one promise may keep nodes several times.

A bound: let R be the longest rest of the jobs that may not be stopped, by their deadlines. Half the price is spent only
if it lasts until the nodes are free at the latest. With patience W and share p, the job starts at most
max(W, 2 R / p) + R after it began to wait, and the k-th in line k R after that moment, if all jobs have deadlines, the
nodes stay, and nobody has a higher priority. Without deadlines R is not known, and the price alone is bounded.
Source: ours; back-filling follows EASY (Lifka, JSSPP 1995), with estimates in place of what users say.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from coda.cache.world_index import WorldIndex
from coda.model.job import Job
from coda.model.resources import Resources
from coda.nodes.node_search import EligibleNodes, RankClass
from coda.promises.earliest_start import (
    EarliestStart,
    earliest_start,
    ended_at_latest,
    ended_later,
    expected_idle,
    free_without,
    latest_start,
)
from coda.promises.overdue_line import patience_s
from coda.promises.own_share import OwnShare
from coda.promises.promise_book import Promise, PromiseBook

LeftForOthers = Mapping[int, Resources]
"""What other jobs may take of each kept node, by number."""


class Kept(NamedTuple):
    """Nodes kept for a job in this cycle.

    `protected`: nodes where nobody may be stopped for another job. `eligible`: all nodes that match the job."""

    job: Job
    promise: Promise
    left_for_others: LeftForOthers
    protected: frozenset[int]
    eligible: EligibleNodes


def keep_nodes(index: WorldIndex, book: PromiseBook, job: Job, rank_class: RankClass, now_s: float) -> Kept | None:
    """Return what is kept for a job that does not fit now; None if nothing is: it never fits, or costs too much.

    O(kept nodes + jobs there); at the first call, and when nodes are looked for again, as `earliest_start`."""
    if index.search.ranks_when_empty(rank_class, rank_class.within) < job.replicas:
        return None
    promise = book.promise_to(job, _price(index), now_s)
    index.holdings.watch()
    left = _left(index, book, job, rank_class, promise, now_s)
    if left is None or promise.is_used_up(now_s) or (now_s >= promise.review_s and not promise.is_certain):
        if not promise.nodes and now_s < promise.review_s:
            return None
        _choose(index, book, job, rank_class, promise, now_s)
        left = _left(index, book, job, rank_class, promise, now_s)
    if left is None:
        promise.drop()
        return None
    arrays = index.arrays
    protected = frozenset[int]() if arrays is None else frozenset(arrays.evictable & left.keys())
    return Kept(job, promise, left, protected, rank_class.eligible)


def _choose(
    index: WorldIndex, book: PromiseBook, job: Job, rank_class: RankClass, promise: Promise, now_s: float
) -> None:
    """Choose the nodes where the job can start first, if the promise can pay for them; else none."""
    promise.drop()
    promise.review_s = now_s + _pause_s(index)
    if promise.price(now_s) <= 0:  # a pod that asks for no cores: what it keeps idle would cost it nothing
        return
    start = earliest_start(index, job, rank_class, book.node_ends, now_s)
    if start is None:
        return
    latest_s = latest_start(index, job, start.ranks_by_node, now_s)
    left = promise.price(now_s) - promise.spent
    if latest_s is not None and promise.amount * (latest_s - now_s) <= left:
        promise.is_certain = True
    elif expected_idle(index, job, start, book.ends, now_s) > left - (0.0 if latest_s is None else left / 2):
        return
    names = {index.capacity.nodes[number].name: ranks for number, ranks in start.ranks_by_node.items()}
    promise.keep(names, _moment_s(start, latest_s, promise), latest_s)
    promise.review_s = now_s + max(_pause_s(index), (start.start_s - now_s) / 4)


def _moment_s(start: EarliestStart, latest_s: float | None, promise: Promise) -> float:
    return latest_s if promise.is_certain and latest_s is not None else start.start_s


def _price(index: WorldIndex) -> float:
    return inf if index.policy.reserves_for_first else index.config.promise_price


def _pause_s(index: WorldIndex) -> float:
    """How long, at least, the nodes that were found last count. Our choice: a hundredth of the patience."""
    return (patience_s(index) or 0.0) / 100


def _left(
    index: WorldIndex, book: PromiseBook, job: Job, rank_class: RankClass, promise: Promise, now_s: float
) -> LeftForOthers | None:
    """What others may take of the nodes; None if none are kept, or if they do not hold the job in time any more."""
    left: dict[int, Resources] = {}
    share = OwnShare(index, job)
    for name, ranks in promise.nodes.items():
        number = index.capacity.number_by_name.get(name)
        if number is None or number not in rank_class.groups.amount_by_node:
            return None
        if promise.is_certain:
            ended = ended_at_latest(index, number, promise.start_s)
        else:
            ended = ended_later(index, number, book.ends, promise.start_s, now_s)
        later, own = free_without(index, number, ended, share)
        if job.request.times_in(own) < ranks:
            return None
        left[number] = _least(index.capacity.free(number), later - job.request * ranks)
    return left or None


def _least(one: Resources, other: Resources) -> Resources:
    """Of each resource the smaller amount."""
    names = one.other.keys() | other.other.keys()
    return Resources(
        cpu_m=min(one.cpu_m, other.cpu_m),
        memory_bytes=min(one.memory_bytes, other.memory_bytes),
        gpus=min(one.gpus, other.gpus),
        pods=min(one.pods, other.pods),
        other={name: min(one.other.get(name, 0), other.other.get(name, 0)) for name in sorted(names)},
    )
