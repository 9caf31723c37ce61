"""Wish, grant, resize and kubelets together, in any order and with anybody dying: no node ever has more than it has."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.allocator import RankSize
from coda.allocator.resize import Progressing, Resize, ResizeState, next_resize
from coda.cycle import answer_from_denial, answer_from_grant, decide
from coda.model import Job, Resources, World
from coda.model.capacity import free_by_node
from coda.model.consistency import check
from coda.model.job import Wish
from coda.model.live_placement import is_resizing, open_wish
from coda.policy import PolicyConfig
from tests.builders import job, node, running

START_CORES = 3
CORES = {"n0": 20, "n1": 11}  # what the jobs begin with, at most, and a little
CONFIG = PolicyConfig(resize_deadline_s=8.0)


class Chain:
    """The whole chain over two nodes, one step of anybody at a time. Time passes by one second a step."""

    def __init__(self, placements: list[tuple[str, ...]], rng: random.Random) -> None:
        self.rng = rng
        self.now_s = 0.0
        self.jobs: list[Job] = []
        self.sizes: dict[str, list[RankSize]] = {}
        self.resizes: dict[str, Resize | None] = {}
        for number, nodes in enumerate(placements):
            one = running(job(f"j{number}", replicas=len(nodes), gpus=0, cores=START_CORES, memory_gib=0), *nodes)
            self.jobs.append(one)
            self.resizes[one.id] = None
            self.sizes[one.id] = [_size(f"{one.id}-{rank}") for rank in range(len(nodes))]
        self.stubborn = rng.choice([size.name for sizes in self.sizes.values() for size in sizes])  # never grows

    def world(self) -> World:
        """As the planner reads it."""
        used: dict[str, Resources] = {}
        seen = []
        for one in self.jobs:
            resize, sizes = self.resizes[one.id], self.sizes[one.id]
            cores = START_CORES if resize is None else resize.cores
            resized = 0 if resize is None else resize.sequence - (not resize.has_ended)
            counted = {rank: _counts(size) for rank, size in enumerate(sizes)}
            request = replace(one.request, cpu_m=cores * 1000)
            own = {rank: cpu_m for rank, cpu_m in counted.items() if cpu_m != request.cpu_m}
            seen.append(replace(one, request=request, cpus_per_replica=cores, resized=resized, pod_cpu_m=own))
            assert one.placement is not None
            for rank, name in enumerate(one.placement.nodes):
                used[name] = used.get(name, Resources()) + replace(request, cpu_m=counted[rank])
        return World(
            nodes=tuple(node(name, gpus=0, cores=cores) for name, cores in CORES.items()), used=used, jobs=tuple(seen)
        )

    def wish(self) -> None:
        """An agent wants something else, if it has its last answer and what came of it."""
        number = self.rng.randrange(len(self.jobs))
        world_job = self.world().jobs[number]
        if open_wish(world_job) is not None or is_resizing(world_job):
            return
        sequence = 1 if world_job.wish is None else world_job.wish.sequence + 1
        wanted = self.rng.randint(1, 8)
        wish = Wish(sequence=sequence, cores=wanted, since_s=self.now_s, deadline_s=self.now_s + 20)
        self.jobs[number] = replace(self.jobs[number], wish=wish)

    def plan(self) -> None:
        """A planner answers; it may die between two writes."""
        world = self.world()
        check(world)
        found = decide(world, CONFIG, self.now_s)
        answers = {grant.job: answer_from_grant(grant, self.now_s, CONFIG) for grant in found.grants}
        answers |= {denial.job: answer_from_denial(denial, self.now_s) for denial in found.denials}
        for number, one in enumerate(self.jobs):
            if one.id in answers and self.rng.random() < 0.8:
                assert one.placement is not None
                self.jobs[number] = replace(one, placement=replace(one.placement, answer=answers[one.id]))

    def operate(self) -> None:
        """An operator takes a job one step on; it may die after any of its patches."""
        one = self.rng.choice(self.jobs)
        assert one.placement is not None
        sizes = self.sizes[one.id]
        step = next_resize(one.placement.answer, self.resizes[one.id], 1, sizes, self.now_s)
        if step is None:
            return
        for size, cores_m in step.patches:
            if self.rng.random() < 0.1:
                return
            sizes[sizes.index(size)] = replace(size, wanted_m=cores_m, says=Progressing.UNSEEN, reason="", message="")
        if self.rng.random() < 0.9:
            self.resizes[one.id] = step.resize

    def attend(self) -> None:
        """A kubelet looks at one of its pods."""
        one = self.rng.choice(self.jobs)
        assert one.placement is not None
        rank = self.rng.randrange(len(self.sizes[one.id]))
        size, name = self.sizes[one.id][rank], one.placement.nodes[rank]
        others_m = sum(
            other.allocated_m
            for each in self.jobs
            for number, other in enumerate(self.sizes[each.id])
            if each.placement is not None and each.placement.nodes[number] == name and other is not size
        )
        if size.wanted_m != size.allocated_m:
            fits = others_m + size.wanted_m <= CORES[name] * 1000 and self.rng.random() < 0.8
            if fits and (size.name != self.stubborn or size.wanted_m < size.allocated_m):
                size = replace(size, allocated_m=size.wanted_m, says=Progressing.UNDER_WAY)
            else:
                size = replace(size, says=Progressing.DEFERRED, reason="Deferred")
        else:
            size = replace(size, actual_m=(size.allocated_m,), says=Progressing.NOTHING, reason="")
        self.sizes[one.id][rank] = size


def _size(name: str) -> RankSize:
    cores_m = START_CORES * 1000
    return RankSize(
        name=name,
        uid=name,
        version="1",
        container="main",
        wanted_m=cores_m,
        allocated_m=cores_m,
        actual_m=(cores_m,),
    )


def _counts(size: RankSize) -> int:
    """As kube-scheduler has it."""
    return max(size.wanted_m, size.allocated_m, *size.actual_m)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from((("n0",), ("n1",), ("n0", "n1"), ("n0", "n0"))), min_size=1, max_size=3),
    st.integers(0, 10**6),
)
def test_no_node_is_ever_over_committed_and_every_grant_ends(placements: list[tuple[str, ...]], seed: int) -> None:
    rng = random.Random(seed)
    chain = Chain(placements, rng)
    for _ in range(250):
        rng.choice((chain.wish, chain.plan, chain.operate, chain.operate, chain.attend, chain.attend))()
        chain.now_s += 0.3
        for name, free in free_by_node(chain.world()).items():
            assert free.cpu_m >= 0, name
    for _ in range(300):  # no new wishes: what was begun ends
        rng.choice((chain.operate, chain.attend))()
        chain.now_s += 0.3
    for one in chain.world().jobs:
        answer = one.placement.answer if one.placement is not None else None
        if answer is None or not answer.granted:
            continue
        resize, sizes = chain.resizes[one.id], chain.sizes[one.id]
        assert resize is not None
        assert resize.has_ended
        assert all(size.wanted_m == size.allocated_m for size in sizes)
        if resize.state is ResizeState.DONE and resize.sequence == answer.sequence:
            assert {size.allocated_m for size in sizes} == {answer.cores * 1000}
