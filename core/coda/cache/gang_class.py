"""Waiting jobs that ask for the same, with what is known about them: questions are answered once for all of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from coda.model.decision import Refusal, WaitReason
from coda.model.job import Job
from coda.nodes.node_search import RankClass
from coda.nodes.shortfall import Shortfall
from coda.policy.arrays import Array, array_of
from coda.policy.order import SortKey


class CapacityView(Enum):
    """What counts as free on a node."""

    __hash__ = object.__hash__

    FREE = "all that is free"
    GPU = "what GPU jobs may take"
    CPU = "what CPU jobs may take without borrowing"
    AFTER_RETURNS = "what CPU jobs could take without borrowing if GPU jobs gave back the CPU array's cores"
    AFTER_RECLAIM = "what GPU jobs could take if borrowing CPU jobs were stopped"
    AFTER_MIGRATION = "what large jobs could take if small ones were stopped as well"
    AFTER_RECLAIM_PROTECTED = "AFTER_RECLAIM, but nobody is stopped on protected nodes"
    AFTER_MIGRATION_PROTECTED = "AFTER_MIGRATION, but nobody is stopped on protected nodes"


class StartOption(NamedTuple):
    """A way to start a gang in the arrays: the view, and the sub-array's nodes (None: all)."""

    view: CapacityView
    side: Array | None = None
    borrows: bool = False  # what it takes belongs to another array
    stops: bool = False  # other jobs must stop first
    takes_back: bool = False  # other jobs must shrink first


Way = tuple[StartOption, RankClass]


class ClassVerdict:
    """Why the jobs of a class wait, as found last. `reason` stays the same object while it says the same."""

    __slots__ = ("_longer", "comes_first", "lasting", "nodes_version", "reason", "shortfall")

    def __init__(self) -> None:
        self.nodes_version = -1  # of the nodes that `lasting` was found for
        self.lasting: WaitReason | None = None  # what no other job's end can change
        self.shortfall: Shortfall | None = None  # that the reason words
        self.comes_first = False  # before any reason that a single job may have
        self.reason: WaitReason | None = None
        self._longer: tuple[WaitReason, tuple[str, ...], WaitReason] | None = None  # `reason`, texts, and both

    def with_texts(self, texts: tuple[str, ...]) -> WaitReason:
        """Return the reason with these texts at its end; the same object while both say the same."""
        reason = self.reason
        assert reason is not None
        if not texts:
            return reason
        if self._longer is None or self._longer[0] is not reason or self._longer[1] != texts:
            self._longer = (reason, texts, replace(reason, message="; ".join((reason.message, *texts))))
        return self._longer[2]

    def set_reason(self, reason: WaitReason, *, comes_first: bool, shortfall: Shortfall | None = None) -> None:
        """This is the reason now."""
        self.comes_first = comes_first
        self.shortfall = shortfall
        if self.reason != reason:
            self.reason = reason


class JudgingCost:
    """How long it took to judge a class, in seconds: on nodes that it was not judged on before, and after that."""

    __slots__ = ("first_s", "is_first", "later_s")

    def __init__(self) -> None:
        self.is_first = True  # the next time is the first on these nodes
        self.first_s: float | None = None
        self.later_s = 0.0


class GangClass:
    """Waiting jobs that ask for the same: if one of them does not fit, none does."""

    __slots__ = (
        "array",
        "cost",
        "fault",
        "job",
        "key",
        "kinds",
        "queued_jobs",
        "rank_class",
        "rank_class_anywhere",
        "verdict",
        "ways",
    )

    def __init__(self, key: Hashable, job: Job) -> None:
        self.key = key
        self.job = job  # any of them
        self.array = array_of(job)
        self.queued_jobs: list[QueuedJob] = []  # in order; who changes it resets `kinds`
        self.kinds: list[QueuedJob] | None = None  # see `run_kinds`
        self.rank_class: RankClass | None = None  # once it is asked for
        self.rank_class_anywhere: RankClass | None = None  # without a required level
        self.ways: dict[tuple[bool, bool], tuple[Way, ...]] = {}  # to start in the arrays, by what they depend on
        self.verdict = ClassVerdict()
        self.cost = JudgingCost()
        self.fault: WaitReason | None = None  # judging it raised an error: it is refused and not judged again

    def take_over(self, before: GangClass) -> None:
        """Jobs of `before` asked for the same, on the same nodes: keep what is known about their ranks."""
        self.rank_class, self.rank_class_anywhere = before.rank_class, before.rank_class_anywhere
        self.ways = before.ways

    def forget_nodes(self) -> None:
        """All nodes are numbered again, so nothing found on them holds."""
        self.fault = None
        self.cost.is_first = True
        self.rank_class = self.rank_class_anywhere = None
        self.ways = {}

    def run_kinds(self) -> list[QueuedJob]:
        """Return the first job of each kind that run times are expected by, in order. O(jobs) after a change.

        Jobs that something else than capacity may hold back are kinds of their own."""
        if self.kinds is None:
            first_by_kind: dict[Hashable, QueuedJob] = {}
            for queued in self.queued_jobs:
                job = queued.job
                kind = (job.user, job.category, job.resumed_s, job.run_left_s)
                first_by_kind.setdefault(job.id if queued.is_held else kind, queued)
            self.kinds = list(first_by_kind.values())
        return self.kinds

    def startable(self, now_s: float) -> Iterator[QueuedJob]:
        """Those that may start now, in order."""
        return (queued for queued in self.queued_jobs if queued.may_start(now_s))


class QueuedJob:
    """A waiting job in the queue, and what it was told last."""

    __slots__ = ("gang_class", "is_held", "job", "reason", "refusal", "sort_key")

    def __init__(self, job: Job, gang_class: GangClass, sort_key: SortKey) -> None:
        self.job = job
        self.gang_class = gang_class
        self.sort_key = sort_key
        # True if something else than capacity may hold it back.
        self.is_held = bool(_is_held_by_itself(job) or job.not_before_s)
        self.reason: WaitReason | None = None
        self.refusal: Refusal | None = None

    def may_start(self, now_s: float) -> bool:
        """False while an edit is not accepted or its status cannot be written, while pods of an earlier placement are
        there, and during a back-off."""
        job = self.job
        return not self.is_held or not (_is_held_by_itself(job) or job.not_before_s > now_s)


def _is_held_by_itself(job: Job) -> bool:
    return bool(job.edited or job.unreadable or job.unwritable or job.leftovers or job.bound or job.unbound)
