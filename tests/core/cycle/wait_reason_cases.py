"""Worlds in which one job waits, and the refusal that it gets: `LASTING`, `HELD_BACK` and `SHORT` causes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from types import MappingProxyType
from typing import Any

import pytest

from coda.cycle import decide
from coda.model import JobId, WaitCode, World
from coda.model.constraints import NodeConstraints, NodeTerm, Requirement, Taint
from coda.model.decision import Refusal, WaitReason
from coda.model.resources import CPU, GPUS, MEMORY, PODS
from coda.policy import PolicyConfig
from tests.builders import GIB, job, node, quota, rack, resources, running, world

NOW_S = 100.0
NODES = (node("n1"), node("n2"))
SSD = NodeTerm(labels=(Requirement(key="ssd", operator="Exists"),))


def refused(snapshot: World) -> list[Refusal]:
    return list(decide(snapshot, PolicyConfig(), NOW_S).refusals)


def refusal(
    code: WaitCode, message: str, *holders: str, numbers: Mapping[str, int] = MappingProxyType({}), **more: Any
) -> Refusal:
    ids = tuple(JobId(f"team/{holder}") for holder in holders)
    reason = WaitReason(code=code, message=message, numbers=numbers, holders=ids, **more)
    return Refusal(JobId("team/job"), 1, reason)


def capacity(ranks: int, ranks_with_room: int, nodes_with_room: int, nodes_matching: int) -> dict[str, int]:
    names = ("ranks", "ranks_with_room", "nodes_with_room", "nodes_matching")
    return dict(zip(names, (ranks, ranks_with_room, nodes_with_room, nodes_matching), strict=True))


LASTING = [
    pytest.param(
        world((), [job()]),
        refusal(
            WaitCode.NO_MATCHING_NODE,
            "there is no node",
            numbers={"nodes": 0, "excluded_by_selector": 0, "excluded_by_affinity": 0, "excluded_by_taint": 0},
        ),
        id="an empty cluster",
    ),
    pytest.param(
        world(
            [
                node("n1"),
                node("n2", labels={"gpu": "a100"}),
                node("n3", labels={"gpu": "a100", "ssd": "1"}, taints=(Taint(key="lab"),)),
            ],
            [job(constraints=NodeConstraints(selector={"gpu": "a100"}, terms=(SSD,)))],
        ),
        refusal(
            WaitCode.NO_MATCHING_NODE,
            "none of 3 nodes accepts its pods: 1 without the labels of its nodeSelector (gpu=a100), "
            "1 outside its required node affinity and 1 with a taint it does not tolerate",
            numbers={"nodes": 3, "excluded_by_selector": 1, "excluded_by_affinity": 1, "excluded_by_taint": 1},
        ),
        id="selector, affinity and taints leave no node",
    ),
    pytest.param(
        world(NODES, [job(gpus=16, cores=1.5)]),
        refusal(
            WaitCode.NEVER_FITS,
            "a rank needs 16 GPUs, 1.5 cores and 1 GiB of memory; even empty, the 2 matching nodes hold none: "
            "the largest has 8 GPUs, 48 cores and 384 GiB of memory",
            numbers={"ranks": 1, "ranks_when_empty": 0, "nodes_matching": 2},
        ),
        id="a rank larger than any node",
    ),
    pytest.param(
        world(NODES, [job(replicas=3, gpus=8)]),
        refusal(
            WaitCode.NEVER_FITS,
            "needs 3 ranks of 8 GPUs, 1 core and 1 GiB of memory each; even empty, the 2 matching nodes hold only 2",
            numbers={"ranks": 3, "ranks_when_empty": 2, "nodes_matching": 2},
        ),
        id="a gang larger than the cluster",
    ),
    pytest.param(
        world([*rack("r1", 2), *rack("r2", 1)], [job(replicas=3, gpus=8, within="rack")]),
        refusal(
            WaitCode.NEVER_FITS,
            "needs all 3 ranks of 8 GPUs, 1 core and 1 GiB of memory each within one rack; "
            "even empty, no rack holds more than 2",
            numbers={"ranks": 3, "ranks_when_empty": 2, "nodes_matching": 3},
        ),
        id="a gang larger than any rack",
    ),
]

HELD_BACK = [
    pytest.param(
        world(
            NODES,
            [
                running(job("x", quota={"pods": 1000}), "n1"),
                job(replicas=3, quota={"pods": 1000, "requests.cpu": 1500}),
            ],
            quotas=[quota("small", hard={"pods": 9000, "requests.cpu": 5000}, used={"requests.cpu": 1000})],
        ),
        refusal(
            WaitCode.QUOTA_EXCEEDED,
            "the whole gang needs 4.5 of requests.cpu, and ResourceQuota small leaves 4",
            numbers={"needed": 5, "left": 4},
        ),
        id="a quota that leaves less than the gang needs",
    ),
    pytest.param(
        world(
            NODES,
            [running(job("x", quota={"m.memory": GIB * 1000}), "n1"), job(quota={"m.memory": 2 * GIB * 1000})],
            quotas=[quota("small", hard={"m.memory": GIB * 2000}, used={"m.memory": GIB * 2000})],
        ),
        refusal(
            WaitCode.QUOTA_EXCEEDED,
            "the whole gang needs 2 GiB of m.memory, and ResourceQuota small leaves 0 bytes",
            "x",
            numbers={"needed": 2 * GIB, "left": 0},
        ),
        id="a quota of bytes, and the job that uses it",
    ),
    pytest.param(
        world(NODES, [job(within="moon")]),
        refusal(
            WaitCode.UNKNOWN_LEVEL,
            "locality names the level 'moon', which is not configured here; known: rack and node",
        ),
        id="a level nobody configured",
    ),
    pytest.param(
        world(NODES, [job(attempt=3, not_before_s=NOW_S + 0.5)]),
        refusal(
            WaitCode.BACKING_OFF,
            "attempt 2 ended early; the next one starts after a pause",
            numbers={"attempt": 3, "not_before_s": 101},
        ),
        id="a back-off after a failed attempt",
    ),
]

SHORT = [
    pytest.param(
        world(NODES, [running(job("x", gpus=1), "n1"), running(job("y", gpus=4), "n2"), job(gpus=8)]),
        refusal(
            WaitCode.INSUFFICIENT_GPUS,
            "needs 8 GPUs, 1 core and 1 GiB of memory free on one node; none of 2 matching nodes has that now; "
            "enough GPUs are free in all, but too scattered",
            "y",
            "x",
            numbers=capacity(1, 0, 0, 2),
            short_of=GPUS,
            scattered=True,
        ),
        id="GPUs, scattered",
    ),
    pytest.param(
        world(NODES, [running(job("x", replicas=2, gpus=6), "n1", "n2"), job(replicas=3, gpus=2)]),
        refusal(
            WaitCode.INSUFFICIENT_GPUS,
            "needs 3 ranks of 2 GPUs, 1 core and 1 GiB of memory each; "
            "2 of 2 matching nodes can hold 2 ranks now; too few GPUs are free",
            "x",
            numbers=capacity(3, 2, 2, 2),
            short_of=GPUS,
        ),
        id="GPUs, too few",
    ),
    pytest.param(
        world([node("n1", cores=8)], [running(job("x", cores=6), "n1"), job(cores=3)]),
        refusal(
            WaitCode.INSUFFICIENT_CPU,
            "needs 1 GPU, 3 cores and 1 GiB of memory free on one node; "
            "the only matching node does not have that now; "
            "too few cores are free",
            "x",
            numbers=capacity(1, 0, 0, 1),
            short_of=CPU,
        ),
        id="cores",
    ),
    pytest.param(
        world([node("n1", memory_gib=8)], [job(memory_gib=4)], foreign={"n1": resources(memory_gib=5)}),
        refusal(
            WaitCode.INSUFFICIENT_MEMORY,
            "needs 1 GPU, 1 core and 4 GiB of memory free on one node; the only matching node does not have that now; "
            "too little memory is free; pods outside Coda, or that outlived their TrainingJob, hold the rest",
            numbers=capacity(1, 0, 0, 1),
            short_of=MEMORY,
        ),
        id="memory, held by foreign pods",
    ),
    pytest.param(
        world([node("n1", pods=1)], [running(job("x"), "n1"), job()]),
        refusal(
            WaitCode.INSUFFICIENT_PODS,
            "needs 1 GPU, 1 core and 1 GiB of memory free on one node; the only matching node does not have that now; "
            "too few pod slots are free",
            "x",
            numbers=capacity(1, 0, 0, 1),
            short_of=PODS,
        ),
        id="pod slots",
    ),
    pytest.param(
        world([node("n1", other={"rdma": 1})], [running(job("x", other={"rdma": 1}), "n1"), job(other={"rdma": 1})]),
        refusal(
            WaitCode.INSUFFICIENT_RESOURCES,
            "needs 1 GPU, 1 core, 1 GiB of memory and 1 rdma free on one node; "
            "the only matching node does not have that now; "
            "too little rdma is free",
            "x",
            numbers=capacity(1, 0, 0, 1),
            short_of="rdma",
        ),
        id="a further resource",
    ),
    pytest.param(
        world([node("n1")], [running(job("x", gpus=8, cores=48), "n1"), job()]),
        refusal(
            WaitCode.INSUFFICIENT_RESOURCES,
            "needs 1 GPU, 1 core and 1 GiB of memory free on one node; the only matching node does not have that now; "
            "every matching node has no free GPU and no free core",
            "x",
            numbers=capacity(1, 0, 0, 1),
            short_of=GPUS,
        ),
        id="two resources, each short everywhere",
    ),
    pytest.param(
        world(
            NODES,
            [
                running(job("x", gpus=4, cores=8), "n1"),
                running(job("y", gpus=6, cores=40), "n2"),
                job(gpus=8, cores=44),
            ],
        ),
        refusal(
            WaitCode.INSUFFICIENT_RESOURCES,
            "needs 8 GPUs, 44 cores and 1 GiB of memory free on one node; none of 2 matching nodes has that now; "
            "every matching node has at most 4 free GPUs and at most 40 free cores",
            "y",
            "x",
            numbers=capacity(1, 0, 0, 2),
            short_of=GPUS,
        ),
        id="two resources, each short everywhere, with what is left",
    ),
    pytest.param(
        world(NODES, [running(job("x", gpus=6, cores=36), "n2"), job(replicas=3, gpus=4, cores=24)]),
        refusal(
            WaitCode.INSUFFICIENT_RESOURCES,
            "needs 3 ranks of 4 GPUs, 24 cores and 1 GiB of memory each; "
            "1 of 2 matching nodes can hold 2 ranks now; "
            "all matching nodes together have enough GPUs for only 2 ranks and "
            "enough cores for only 2 ranks",
            "x",
            numbers=capacity(3, 2, 1, 2),
            short_of=GPUS,
        ),
        id="two resources, each enough for fewer ranks",
    ),
    pytest.param(
        world(
            [node("n1", cores=96), node("n2", cores=96)],
            [
                running(job("x", gpus=4, cores=1), "n1"),
                running(job("y", gpus=0, cores=56), "n2"),
                job(cores=64, gpus=8),
            ],
        ),
        refusal(
            WaitCode.INSUFFICIENT_GPUS,
            "needs 8 GPUs, 64 cores and 1 GiB of memory free on one node; none of 2 matching nodes has that now; "
            "matching nodes with enough GPUs have at most 40 free cores; "
            "matching nodes with enough cores have at most 4 free GPUs",
            "x",
            numbers=capacity(1, 0, 0, 2),
            short_of=GPUS,
            scattered=True,
        ),
        id="each node has one of two resources",
    ),
    pytest.param(
        world(
            [node("n1", cores=96), node("n2", cores=96), node("n3", cores=96)],
            [
                running(job("x", gpus=4, cores=1), "n1"),
                running(job("y", gpus=0, cores=56), "n2"),
                job(replicas=2, cores=64, gpus=8),
            ],
        ),
        refusal(
            WaitCode.INSUFFICIENT_GPUS,
            "needs 2 ranks of 8 GPUs, 64 cores and 1 GiB of memory each; "
            "1 of 3 matching nodes can hold 1 rank now; "
            "matching nodes with enough GPUs have enough cores for only 1 rank",
            "x",
            numbers=capacity(2, 1, 1, 3),
            short_of=GPUS,
            scattered=True,
        ),
        id="some nodes have one of two resources and too few have both",
    ),
    pytest.param(
        world(
            [*NODES, node("n3"), node("n4", schedulable=False)],
            [job(gpus=8, cores=40, memory_gib=300)],
            foreign={
                "n1": resources(gpus=0, cores=20, memory_gib=200),
                "n2": resources(gpus=4, cores=0, memory_gib=200),
                "n3": resources(gpus=4, cores=20, memory_gib=0),
            },
        ),
        refusal(
            WaitCode.INSUFFICIENT_RESOURCES,
            "needs 8 GPUs, 40 cores and 300 GiB of memory free on one node; none of 4 matching nodes has that now; "
            "usable nodes with enough GPUs have at most 28 free cores and at most 184 GiB of free memory; "
            "1 node cordoned, not ready, under pressure or being removed",
            numbers=capacity(1, 0, 0, 4),
            short_of=CPU,
            scattered=True,
        ),
        id="each node has one of three resources",
    ),
    pytest.param(
        world(
            [node(f"n{number}", other={"rdma": 8}) for number in range(1, 7)],
            [job(gpus=8, cores=40, memory_gib=300, other={"rdma": 8})],
            foreign={
                f"n{number}": resources(
                    gpus=4 * ("gpu" in taken),
                    cores=20 * ("cpu" in taken),
                    memory_gib=200 * ("memory" in taken),
                    rdma=4 * ("rdma" in taken),
                )
                for number, taken in enumerate(combinations(("gpu", "cpu", "memory", "rdma"), 2), 1)
            },
        ),
        refusal(
            WaitCode.INSUFFICIENT_RESOURCES,
            "needs 8 GPUs, 40 cores, 300 GiB of memory and 8 rdma free on one node; none of 6 matching nodes has that "
            "now; enough of each resource is free, but not on the same nodes",
            numbers=capacity(1, 0, 0, 6),
        ),
        id="each node has two of four resources",
    ),
    pytest.param(
        world(
            [node("n1", cores=8, memory_gib=8), node("n2", gpus=4), node("n3", gpus=4, schedulable=False)],
            [job(gpus=8, cores=16, memory_gib=16)],
        ),
        refusal(
            WaitCode.NEVER_FITS,
            "a rank needs 8 GPUs, 16 cores and 16 GiB of memory; even empty, the 3 matching nodes hold none: "
            "the largest has 8 GPUs, 8 cores and 8 GiB of memory",
            numbers={"ranks": 1, "ranks_when_empty": 0, "nodes_matching": 3},
        ),
        id="larger than any node in one way or another",
    ),
    pytest.param(
        world([node("n1"), node("n2", schedulable=False), node("n3")], [job(replicas=3, gpus=8, avoid=["n3"])]),
        refusal(
            WaitCode.INSUFFICIENT_GPUS,
            "needs 3 ranks of 8 GPUs, 1 core and 1 GiB of memory each; "
            "1 of 3 matching nodes can hold 1 rank now; "
            "too few GPUs are free; 1 node cordoned, not ready, under pressure or being removed; "
            "1 node avoided after a failed attempt",
            numbers=capacity(3, 1, 1, 3),
            short_of=GPUS,
        ),
        id="nodes that only time brings back",
    ),
    pytest.param(
        world(
            [*rack("r1", 2), *rack("r2", 2)],
            [running(job("x"), "r1-0"), running(job("y"), "r2-0"), job(replicas=2, gpus=8, within="rack")],
        ),
        refusal(
            WaitCode.NO_DOMAIN_FITS,
            "needs all 2 ranks of 8 GPUs, 1 core and 1 GiB of memory each within one rack; "
            "enough is free in all, but no rack can hold more than 1 of them now",
            "x",
            "y",
            numbers={"ranks": 2, "ranks_in_one_domain": 1},
        ),
        id="enough, but in no single rack",
    ),
]
