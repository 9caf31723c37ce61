"""Algorithm 1: who starts where, who reserves, who waits and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.errors import InvalidInput
from coda.sharing.config import GIB, SharingConfig
from coda.sharing.gpu_placement import GpuChoice, SharedGpu, gpus_for_guaranteed, gpus_for_opportunistic, may_upgrade
from coda.sharing.pairing import GpuProfile

CONFIG = SharingConfig()


def profile(duty: float = 0.5, peak: int = 4, floor: int = 1) -> GpuProfile:
    return GpuProfile(key=f"u{duty}", duty=duty, step_s=0.1, peak_bytes=peak * GIB, floor_bytes=floor * GIB)


def gpu(node: str, index: int, **more: object) -> SharedGpu:
    return SharedGpu(node=node, index=index, total_bytes=32 * GIB, **more)  # type: ignore[arg-type]


def held(node: str, index: int, duty: float = 0.5, **more: object) -> SharedGpu:
    return gpu(node, index, guaranteed="g", profile=profile(duty), load=duty, **more)


def places(choice: GpuChoice) -> list[str]:
    return [f"{one.node}{one.index}" for one in choice.gpus]


def test_a_guaranteed_job_takes_one_node_with_the_fewest_neighbours_to_slow_down() -> None:
    shared = gpu("a", 0, sharers=(profile(),))
    cluster = [shared, gpu("a", 1), held("b", 0), gpu("b", 1), gpu("c", 0), gpu("c", 1)]
    assert places(gpus_for_guaranteed("j", 2, cluster)) == ["c0", "c1"]
    assert places(gpus_for_guaranteed("j", 2, cluster[:4])) == ["a1", "a0"]


def test_too_few_gpus_are_reserved_and_nobody_elses() -> None:
    cluster = [gpu("a", 0), held("a", 1), held("b", 0), gpu("b", 1, reserved_for="other")]
    choice = gpus_for_guaranteed("j", 2, cluster)
    assert (choice.starts, places(choice), choice.reason) == (False, ["a0"], "it holds 1 of 2 GPUs and waits")
    assert places(gpus_for_guaranteed("other", 1, [cluster[3]])) == ["b1"]
    assert gpus_for_guaranteed("j", 5, cluster).gpus == ()
    across = gpus_for_guaranteed("j", 3, [gpu("a", 0), gpu("a", 1), gpu("b", 0), gpu("b", 1)])
    assert (across.starts, places(across)) == (True, ["a0", "a1", "b0"])


def test_reserved_gpus_serve_opportunistic_jobs() -> None:
    assert places(gpus_for_opportunistic(profile(), 1, [gpu("a", 0, reserved_for="j")], CONFIG)) == ["a0"]


@pytest.mark.parametrize(
    "closed",
    [
        held("a", 0, 0.8),
        held("a", 0, exclusive=True),
        held("a", 0, steady=False),
        gpu("a", 0, guaranteed="g"),
        gpu("a", 0, sharers=(profile(),) * 4),
        replace(held("a", 0), profile=profile(0.5, peak=32)),
    ],
    ids=["busy", "exclusive", "unsteady", "unknown", "no seat", "no memory"],
)
def test_opportunistic_jobs_stay_away(closed: SharedGpu) -> None:
    choice = gpus_for_opportunistic(profile(), 1, [closed], CONFIG)
    assert not choice.starts
    assert choice.reason.startswith("0 GPUs may take it (1 needed)")


def test_opportunistic_jobs_go_where_they_are_fastest_and_host_memory_comes_last() -> None:
    tight = gpu("a", 0, sharers=(profile(0.1, peak=31, floor=1),))
    cluster = [held("b", 0, 0.7), held("b", 1, 0.2), tight]
    assert places(gpus_for_opportunistic(profile(), 1, cluster, CONFIG)) == ["b1"]
    assert places(gpus_for_opportunistic(profile(), 1, [*cluster, gpu("z", 0)], CONFIG)) == ["z0"]
    assert places(gpus_for_opportunistic(profile(), 1, [tight], CONFIG)) == ["a0"]


def test_whoever_would_crawl_waits_and_is_told() -> None:
    choice = gpus_for_opportunistic(profile(1.0), 1, [held("a", 0, 0.79)], CONFIG)
    assert choice.reason == "its GPUs are too busy: the best would give 8% (10% needed)"


def test_an_upgrade_needs_all_its_gpus_and_the_quota() -> None:
    mine = [gpu("a", 0, sharers=(profile(),)), gpu("a", 1, sharers=(profile(),))]
    assert may_upgrade("j", mine, quota_left=2)
    assert not may_upgrade("j", mine, quota_left=1)
    assert not may_upgrade("j", [*mine, held("a", 2)], quota_left=3)
    assert not may_upgrade("j", [], quota_left=3)


def test_impossible_questions_are_refused() -> None:
    with pytest.raises(InvalidInput):
        gpus_for_guaranteed("j", 0, [])
    with pytest.raises(InvalidInput):
        gpus_for_opportunistic(profile(), 0, [], CONFIG)
    with pytest.raises(InvalidInput):
        gpu("a", 0, load=1.5)


PROFILES = st.builds(profile, st.sampled_from([0.1, 0.4, 0.6, 0.95]), st.integers(1, 32), st.just(1))


@st.composite
def clusters(draw: st.DrawFn) -> list[SharedGpu]:
    found = []
    for place in draw(st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=8)):
        owner = draw(st.one_of(st.none(), PROFILES))
        found.append(
            gpu(
                *place,
                guaranteed=None if owner is None else "g",
                profile=owner,
                load=draw(st.sampled_from([0.0, 0.5, 0.9])),
                sharers=tuple(draw(st.lists(PROFILES, max_size=4))),
                reserved_for=None if owner else draw(st.sampled_from([None, None, "r"])),
            )
        )
    return found


@given(clusters(), st.integers(1, 4), PROFILES)
@settings(max_examples=150, deadline=None)
def test_law_a_further_free_gpu_never_hurts(cluster: list[SharedGpu], gpus: int, job: GpuProfile) -> None:
    before = gpus_for_opportunistic(job, gpus, cluster, CONFIG)
    guaranteed = gpus_for_guaranteed("j", gpus, cluster)
    for place in (("a", 9), ("z", 0)):
        after = gpus_for_opportunistic(job, gpus, [*cluster, gpu(*place)], CONFIG)
        assert after.starts >= before.starts
        assert (_in_host(after, job), -after.speed) <= (_in_host(before, job), -before.speed) or not before.starts
    # Nodes do not grow, and a gang that fits a larger node waits for it: here a GPU that was held becomes free.
    for at, one in enumerate(cluster):
        more = gpus_for_guaranteed("j", gpus, [*cluster[:at], gpu(one.node, one.index), *cluster[at + 1 :]])
        assert more.starts >= guaranteed.starts


@given(clusters(), st.integers(1, 4), PROFILES)
@settings(max_examples=100, deadline=None)
def test_law_never_two_guaranteed_jobs_on_one_gpu_and_order_does_not_matter(
    cluster: list[SharedGpu], gpus: int, job: GpuProfile
) -> None:
    choice = gpus_for_guaranteed("j", gpus, cluster)
    assert all(one.guaranteed is None and one.reserved_for is None for one in choice.gpus)
    assert len(set(places(choice))) == len(choice.gpus) == (gpus if choice.starts else len(choice.gpus))
    assert gpus_for_guaranteed("j", gpus, cluster[::-1]) == choice
    assert gpus_for_opportunistic(job, gpus, cluster[::-1], CONFIG) == gpus_for_opportunistic(
        job, gpus, cluster, CONFIG
    )


def _in_host(choice: GpuChoice, job: GpuProfile) -> bool:
    residents = [(*one.sharers, *([one.profile] if one.profile else [])) for one in choice.gpus]
    return any(sum(one.peak_bytes for one in (job, *some)) > 32 * GIB for some in residents)
