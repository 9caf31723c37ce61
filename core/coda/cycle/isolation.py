"""Sets apart what makes a whole cycle fail: jobs, nodes and quotas that raise an error of ours when they are judged.

Errors in judging one class of jobs are caught where they happen (`judging`). This is for all others: an object that
cannot even be indexed, or that breaks a step for everybody. It is found by trying parts of the world, and left out
until it changes. The nodes of a placed job that is left out are closed, because what it withholds cannot be counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from coda.cycle.faults import text_of, undecidable
from coda.model.decision import Fault, Refusal, WaitReason
from coda.model.job import Job, JobId, Phase
from coda.model.world import Node, Quota, World

Answer = TypeVar("Answer")

Judge = Callable[[World], object]
"""Judges a world, without effects; raises if it cannot."""


@dataclass(slots=True)
class SetApart:
    """What is left out of every world, as long as it stays the same."""

    jobs: dict[JobId, tuple[Job, WaitReason]] = field(default_factory=dict)
    wishes: dict[JobId, tuple[Job, Job]] = field(default_factory=dict)  # running jobs, and each without its wish
    nodes: dict[str, Node] = field(default_factory=dict)
    quotas: dict[tuple[str, str], Quota] = field(default_factory=dict)
    traceback: str = ""  # of the last error that set something apart

    def standing(self) -> Fault | None:
        """Return what is left out now, whenever it was found, with the last error; None if nothing is."""
        if not (self.jobs or self.wishes or self.nodes or self.quotas):
            return None
        return Fault(
            jobs=(*self.jobs, *self.wishes),
            nodes=tuple(self.nodes),
            quotas=tuple("/".join(key) for key in self.quotas),
            traceback=self.traceback,
        )

    def rest_of(self, world: World) -> World:
        """Return the world without them. O(1) if there are none."""
        if not (self.jobs or self.wishes or self.nodes or self.quotas):
            return world
        self._forget_changed(world)
        jobs, nodes = world.jobs, world.nodes
        if self.jobs or self.wishes:
            closed = {name for job, _ in self.jobs.values() for name in _nodes_of(job)}
            without_wish = {name: quiet for name, (_, quiet) in self.wishes.items()}
            jobs = tuple(without_wish.get(job.id, job) for job in jobs if job.id not in self.jobs)
            nodes = tuple(replace(node, schedulable=False) if node.name in closed else node for node in nodes)
        return replace(
            world,
            jobs=jobs,
            nodes=tuple(node for node in nodes if node.name not in self.nodes),
            quotas=tuple(quota for quota in world.quotas if _key(quota) not in self.quotas),
        )

    def judge(self, world: World, judge: Callable[[World], Answer], judge_part: Judge) -> tuple[Answer, Fault | None]:
        """Return what `judge` answers about the world without them; if it raises, find more of them, and judge again.

        `judge_part` does the same for parts of the world, and remembers nothing."""
        rest = self.rest_of(world)
        try:
            return judge(rest), None
        except Exception as error:  # an object that breaks a step for everybody: find it, and go on without it
            fault = self._add_culprits(rest, judge_part, error)
            return judge(self.rest_of(world)), fault

    def refusals(self) -> tuple[Refusal, ...]:
        """Why the waiting jobs among them wait."""
        waiting = ((job, reason) for job, reason in self.jobs.values() if job.phase is Phase.QUEUED)
        return tuple(Refusal(job.id, job.generation, reason) for job, reason in waiting)

    def _add_culprits(self, world: World, judge: Judge, error: Exception) -> Fault:
        """Find what in the world raises, and leave it out from now on; nothing, if all is fine when judged anew.

        Cost: a judgement of each node alone, and O(culprits x log jobs) judgements of all nodes."""
        bare = replace(world, jobs=(), quotas=())
        nodes = (
            [] if _is_fine(judge, bare) else [n for n in world.nodes if not _is_fine(judge, replace(bare, nodes=(n,)))]
        )
        left = replace(bare, nodes=tuple(node for node in world.nodes if node not in nodes))
        quotas = [quota for quota in world.quotas if not _is_fine(judge, replace(left, quotas=(quota,)))]
        left = replace(left, quotas=tuple(quota for quota in world.quotas if quota not in quotas))
        good, jobs = _divided(world.jobs, lambda some: _is_fine(judge, replace(left, jobs=tuple(some))))
        for job in [job for job in jobs if job.wish is not None]:
            quiet = replace(job, wish=None)
            if _is_fine(judge, replace(left, jobs=(*good, quiet))):
                self.wishes[job.id] = (job, quiet)
                good.append(quiet)
        self.nodes.update((node.name, node) for node in nodes)
        self.quotas.update((_key(quota), quota) for quota in quotas)
        self.jobs.update((job.id, (job, undecidable(job, error))) for job in jobs if job.id not in self.wishes)
        self.traceback = text_of(error)
        return Fault(
            jobs=tuple(job.id for job in jobs),
            nodes=tuple(node.name for node in nodes),
            quotas=tuple("/".join(_key(quota)) for quota in quotas),
            traceback=self.traceback,
        )

    def _forget_changed(self, world: World) -> None:
        job_by_id = {job.id: job for job in world.jobs}
        self.jobs = {name: kept for name, kept in self.jobs.items() if job_by_id.get(name) is kept[0]}
        self.wishes = {name: kept for name, kept in self.wishes.items() if job_by_id.get(name) is kept[0]}
        node_by_name = {node.name: node for node in world.nodes}
        self.nodes = {name: node for name, node in self.nodes.items() if node_by_name.get(name) is node}
        quota_by_key = {_key(quota): quota for quota in world.quotas}
        self.quotas = {key: quota for key, quota in self.quotas.items() if quota_by_key.get(key) is quota}


def _is_fine(judge: Judge, world: World) -> bool:
    try:
        judge(world)
    except Exception:  # whatever it is, this part of the world raises it
        return False
    return True


def _divided(jobs: Sequence[Job], is_fine: Callable[[Iterable[Job]], bool]) -> tuple[list[Job], list[Job]]:
    """The jobs that are fine together, and the culprits. O(culprits x log jobs) questions."""
    good: list[Job] = []
    culprits: list[Job] = []
    parts = [list(jobs)]
    while parts:
        part = parts.pop()
        if is_fine((*good, *part)):
            good += part
        elif len(part) == 1:
            culprits += part
        else:
            half = len(part) // 2
            parts += [part[half:], part[:half]]
    return good, culprits


def _nodes_of(job: Job) -> Iterable[str]:
    placed = job.placement.nodes if job.placement is not None else ()
    return (*placed, *job.unbound.values())


def _key(quota: Quota) -> tuple[str, str]:
    return quota.namespace, quota.name
