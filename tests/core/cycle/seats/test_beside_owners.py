"""Seats on GPUs that a guaranteed job has whole, as the node's agent tells: who joins whom, and who does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.model import Job, Phase, WaitCode
from coda.model.job import JobId, SharingWish
from coda.model.world import GpuUse
from tests.builders import (
    GIB,
    gpu_of,
    gpu_of_nobody,
    job,
    joinable,
    node,
    planned,
    resources,
    running,
    seat_node,
    world,
)
from tests.core.cycle.seats.test_seats import OFF, ON, codes, cycle, places, rider

WHOLE = joinable(job("whole"), "n1")


def test_it_joins_the_gpu_of_a_job_that_leaves_it_time_and_memory() -> None:
    result = cycle(world([seat_node("n1")], [WHOLE, rider("a")], gpu_uses={"n1": (gpu_of(WHOLE, 0, duty=0.4),)}))
    assert places(result) == {"team/a": (("n1", 0),)}
    (start,) = result.decision.starts
    assert start.beside == ("team/whole",)
    assert start.speed == pytest.approx(0.24)  # 0.4 of the 60 % that are left


def test_a_gpu_of_nobody_is_better_and_of_two_owners_the_one_that_idles_more() -> None:
    busy, idle = joinable(job("busy"), "n1"), joinable(job("idle"), "n1")
    uses = (gpu_of(busy, 0, duty=0.6), gpu_of_nobody(1), gpu_of(idle, 2, duty=0.1))
    there = world([seat_node("n1", gpus=3)], [busy, idle, rider("a", gpu_gib=50)], gpu_uses={"n1": uses})
    assert places(cycle(there)) == {"team/a": (("n1", 1),)}
    full = joinable(job("full"), "n1")
    there = world(
        [seat_node("n1", gpus=3)],
        [busy, idle, full, rider("a", gpu_gib=50)],
        gpu_uses={"n1": (uses[0], gpu_of(full, 1, duty=0.9), uses[2])},
    )
    assert places(cycle(there)) == {"team/a": (("n1", 2),)}


def test_on_a_node_of_which_every_whole_gpu_has_a_name_the_others_are_known_to_be_free() -> None:
    """A foreign pod's GPU, too, as long as the agent tells that it is taken."""
    foreign = {"n1": resources(gpus=1, pods=1)}
    told = (GpuUse(index=0, is_taken=True), gpu_of(WHOLE, 1), gpu_of_nobody(2))
    jobs = [WHOLE, rider("a", gpu_gib=70)]
    there = world([seat_node("n1", gpus=3)], jobs, foreign=foreign, gpu_uses={"n1": told})
    assert places(cycle(there)) == {"team/a": (("n1", 2),)}
    silent = world([seat_node("n1", gpus=3)], jobs, foreign=foreign, gpu_uses={"n1": told[1:]})
    assert codes(cycle(silent)) == {"team/a": WaitCode.GPUS_NOT_KNOWN}


def test_a_gpu_of_which_the_agent_says_nothing_is_not_known_where_it_speaks_of_others() -> None:
    """A process uses it that nobody explains."""
    there = world([seat_node("n1", gpus=2)], [rider("a", gpu_gib=70), rider("b")], gpu_uses={"n1": (gpu_of_nobody(1),)})
    assert places(cycle(there)) == {"team/a": (("n1", 1),), "team/b": (("n1", 1),)}


def test_a_job_whose_pods_are_about_to_come_may_get_any_gpu_that_nobody_has() -> None:
    soon = planned(job("soon"), "n1")
    told = (gpu_of(WHOLE, 0), gpu_of_nobody(1))
    there = world([seat_node("n1", gpus=2)], [WHOLE, soon, rider("a")], gpu_uses={"n1": told})
    assert places(cycle(there)) == {"team/a": (("n1", 0),)}


def test_a_gang_sits_beside_the_ranks_of_another() -> None:
    gang = joinable(job("gang", replicas=2), "n1", "n1")
    uses = {"n1": (gpu_of(gang, 0, rank=1), gpu_of(gang, 1, rank=0))}
    result = cycle(world([seat_node("n1", gpus=2)], [gang, rider("a", replicas=2)], gpu_uses=uses))
    assert places(result) == {"team/a": (("n1", 0), ("n1", 1))}
    assert result.decision.starts[0].beside == ("team/gang",)


@pytest.mark.parametrize(
    ("owner", "use", "code"),
    [
        (running(job("whole"), "n1"), gpu_of(WHOLE, 0), WaitCode.GPUS_NOT_KNOWN),  # its pods lack the files
        (replace(WHOLE, searching=True), gpu_of(WHOLE, 0), WaitCode.GPUS_NOT_KNOWN),
        (WHOLE, gpu_of(WHOLE, 0, duty=None), WaitCode.GPUS_NOT_KNOWN),
        (WHOLE, gpu_of(WHOLE, 0, gib=None), WaitCode.GPUS_NOT_KNOWN),
        (WHOLE, replace(gpu_of(WHOLE, 0), attempt=2), WaitCode.GPUS_NOT_KNOWN),
        (WHOLE, gpu_of(WHOLE, 0, rank=1), WaitCode.GPUS_NOT_KNOWN),
        (WHOLE, replace(gpu_of(WHOLE, 0), job=JobId("team/gone")), WaitCode.GPUS_NOT_KNOWN),
        (WHOLE, replace(gpu_of(WHOLE, 0), job=None), WaitCode.GPUS_NOT_KNOWN),
        (WHOLE, gpu_of_nobody(0), WaitCode.GPUS_NOT_KNOWN),  # yet the node's one GPU is in use
        (replace(WHOLE, phase=Phase.STARTING), gpu_of(WHOLE, 0), WaitCode.GPUS_NOT_KNOWN),
        (WHOLE, gpu_of(WHOLE, 0, duty=0.76), WaitCode.GPUS_TOO_BUSY),  # 0.4 of the rest is below a tenth
        (WHOLE, gpu_of(WHOLE, 0, duty=0.8), WaitCode.GPUS_TOO_BUSY),  # AntMan's M
        (WHOLE, gpu_of(WHOLE, 0, gib=67), WaitCode.GPU_MEMORY_TAKEN),  # 5 % more than it was seen to have
        (replace(WHOLE, gpu_bytes=75 * GIB), gpu_of(WHOLE, 0), WaitCode.GPU_MEMORY_TAKEN),
    ],
)
def test_it_waits_where_it_cannot_join(owner: Job, use: GpuUse, code: WaitCode) -> None:
    result = cycle(world([seat_node("n1")], [owner, rider("a")], gpu_uses={"n1": (use,)}))
    assert (places(result), codes(result)) == ({}, {"team/a": code})


def test_a_job_that_says_how_much_memory_it_needs_need_not_be_measured() -> None:
    said = replace(WHOLE, gpu_bytes=30 * GIB)
    there = world([seat_node("n1")], [said, rider("a")], gpu_uses={"n1": (gpu_of(said, 0, gib=None),)})
    assert places(cycle(there)) == {"team/a": (("n1", 0),)}


def test_the_agent_knows_the_cards_memory_where_the_node_has_no_label() -> None:
    use = replace(gpu_of(WHOLE, 0), memory_bytes=80 * GIB)
    there = world([seat_node("n1", gpu_gib=None)], [WHOLE, rider("a")], gpu_uses={"n1": (use,)})
    assert places(cycle(there)) == {"team/a": (("n1", 0),)}


@pytest.mark.parametrize(
    ("asks", "on", "is_joinable"),
    [
        (job("asks"), seat_node("n1"), True),
        (job("asks"), node("n1"), False),  # its agent offers no files
        (replace(job("asks"), keeps_to_itself=True), seat_node("n1"), False),
        (replace(job("asks"), sharing=SharingWish.AUTO), seat_node("n1"), True),
        (replace(job("asks"), sharing=SharingWish.AUTO, keeps_to_itself=True), seat_node("n1"), False),
        (job("asks", gpus=0), seat_node("n1"), False),
        (rider("asks"), seat_node("n1"), False),
    ],
)
def test_who_may_be_joined_later_brings_the_files(asks: Job, on: object, is_joinable: bool) -> None:
    there = world([on], [asks])  # type: ignore[list-item]
    (start,) = cycle(there).decision.starts
    assert start.joinable is is_joinable
    assert not any(one.joinable for one in cycle(there, OFF).decision.starts)


def test_all_nodes_of_a_gang_must_offer_the_files() -> None:
    gang = job("gang", replicas=2, cores=40)
    (start,) = cycle(world([seat_node("n1"), node("n2")], [gang]), ON).decision.starts
    assert (set(start.nodes), start.joinable) == ({"n1", "n2"}, False)


@pytest.mark.parametrize("duty", [0.0, 0.4])
def test_nobody_joins_a_job_that_its_agent_does_not_hear(duty: float) -> None:
    """Inference, JAX, an idle notebook: 40 % were promised there, and the agent gave 5 % for ever."""
    silent = replace(gpu_of(WHOLE, 0, duty=duty), is_heard=False)
    result = cycle(world([seat_node("n1")], [WHOLE, rider("a")], gpu_uses={"n1": (silent,)}))
    assert codes(result) == {"team/a": WaitCode.GPUS_TOO_BUSY}
    other = world([seat_node("n1"), seat_node("n2")], [WHOLE, rider("a")], gpu_uses={"n1": (silent,)})
    assert places(cycle(other)) == {"team/a": (("n2", 0),)}
