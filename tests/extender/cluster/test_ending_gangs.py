"""Capacity of a gang that ends is given away as a whole, and after a moment rank by rank."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.model import NOTHING
from coda.placements.lingering_use import SETTLE_S
from coda.policy import ArraysConfig, PolicyConfig
from coda_extender.cluster.ending_gangs import EndingGangs
from coda_kube.cluster_state import ClusterState
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, NODES, PODS, job_json, node_json, placement, pod_json, rank_json
from tests.extender.replicas import placement_of, replica, state_of, status

OVERTAKING = PolicyConfig(promise_patience_s=None)
STOP = {"cause": "Migrate", "by": "default/large", "time": "2026-01-01T00:00:00Z"}


class Watched:
    """Pods as a replica sees them, and what it keeps of the attempts that are ending."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.state = ClusterState()
        self.endings = EndingGangs(self.state, lambda: self.now_s)
        self._items: dict[str, Any] = {}

    def see(self, item: Any) -> None:
        self._change(item["metadata"]["name"], item)

    def end(self, name: str, phase: str = "Succeeded") -> None:
        self._change(name, self._items[name] | {"status": {"phase": phase}})

    def lose(self, name: str) -> None:
        self._change(name, None)

    def run(self, job: str, *nodes: str, attempt: int = 1) -> None:
        """Its ranks are bound to these nodes."""
        for rank, node in enumerate(nodes):
            self.see(rank_json(job, rank, node, node=node, attempt=attempt))

    def held_gpus(self) -> dict[str, int]:
        return {node: amount.gpus for node, amount in self.endings.held_by_node().items()}

    def _change(self, name: str, new: Any) -> None:
        old = self._items.pop(name, None)
        if new is not None:
            self._items[name] = new
        before = self.state.pod_by_id.get(f"default/{name}")
        self.state.on_pod(old, new)
        self.endings.observe(before, self.state.pod_by_id.get(f"default/{name}"))


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_capacity_is_held_until_the_last_rank_has_ended(watched: Watched) -> None:
    watched.run("gang", "n1", "n2", "n2")
    watched.end("gang-1-0")
    watched.end("gang-1-1")
    assert watched.held_gpus() == {"n1": 8, "n2": 8}
    watched.end("gang-1-2")
    assert watched.held_gpus() == {}
    assert watched.endings.next_expiry_in_s() is None


def test_capacity_is_held_for_a_moment_only_where_a_rank_runs_on(watched: Watched) -> None:
    watched.run("gang", "n1", "n2", "n3")
    watched.end("gang-1-0")
    watched.now_s += SETTLE_S / 2
    watched.end("gang-1-1")
    assert watched.held_gpus() == {"n1": 8, "n2": 8}
    assert watched.endings.next_expiry_in_s() == SETTLE_S / 2
    watched.now_s += SETTLE_S / 2
    assert watched.held_gpus() == {}
    watched.lose("gang-1-1")
    assert watched.endings.next_expiry_in_s() is None


def test_who_ends_long_after_the_first_is_not_waited_for(watched: Watched) -> None:
    watched.run("gang", "n1", "n2", "n3")
    watched.end("gang-1-0")
    watched.now_s += SETTLE_S
    watched.end("gang-1-1")
    assert watched.held_gpus() == {}


def test_nothing_is_held_of_a_single_rank_or_of_pods_outside_coda(watched: Watched) -> None:
    watched.run("single", "n1")
    watched.see(pod_json("foreign", gpus=1, node="n1"))
    watched.end("single-1-0")
    watched.end("foreign")
    assert watched.held_gpus() == {}


def test_it_holds_however_the_ranks_end(watched: Watched) -> None:
    watched.run("rolled-back", "n1", "n2", "n3", "n4")
    watched.end("rolled-back-1-0", "Failed")
    watched.lose("rolled-back-1-0")  # its object goes after its end: nothing new
    watched.lose("rolled-back-1-1")
    assert watched.held_gpus() == {"n1": 8, "n2": 8}
    watched.lose("rolled-back-1-2")
    watched.lose("rolled-back-1-3")
    assert watched.held_gpus() == {}


def test_another_attempt_of_the_job_is_another_ending(watched: Watched) -> None:
    watched.run("gang", "n1", "n2", attempt=1)
    watched.run("gang", "n3", "n4", attempt=2)
    watched.end("gang-1-0")
    watched.end("gang-2-1")
    assert watched.held_gpus() == {"n1": 8, "n4": 8}
    watched.end("gang-1-1")
    assert watched.held_gpus() == {"n4": 8}


def test_pods_without_a_node_hold_nothing_and_are_waited_for(watched: Watched) -> None:
    watched.run("gang", "n1")
    watched.see(rank_json("gang", 1, "n2"))
    watched.end("gang-1-0", "Failed")
    assert watched.held_gpus() == {"n1": 8}
    watched.lose("gang-1-1")
    assert watched.held_gpus() == {}


def test_an_attempt_that_was_ordered_to_stop_holds_nothing(watched: Watched) -> None:
    watched.run("guest", "n1", "n2")
    watched.state.on_job(None, ordered_to_stop("guest", "n1", "n2"))
    watched.end("guest-1-0", "Failed")
    assert watched.held_gpus() == {}


RANKS = [(job, attempt, rank) for job in ("a", "b") for attempt in (1, 2) for rank in range(3)]


@given(st.lists(st.tuples(st.sampled_from(RANKS), st.sampled_from(["end", "lose"]), st.sampled_from([0.0, 0.7, 2.0]))))
def test_the_planner_sees_an_attempt_whole_or_only_its_live_ranks(steps: list[Any]) -> None:
    """Whole as long as some of its ranks live and the first one that ended did so less than a settle time ago."""
    watched = Watched()
    for job, attempt, rank in RANKS:
        watched.see(rank_json(job, rank, f"n{rank}", node=f"n{rank}", attempt=attempt))
    first_s: dict[tuple[str, int], float] = {}
    live = set(RANKS)
    for (job, attempt, rank), what, passes_s in steps:
        if (job, attempt, rank) not in live:
            continue
        live.remove((job, attempt, rank))
        first_s.setdefault((job, attempt), watched.now_s)
        (watched.end if what == "end" else watched.lose)(f"{job}-{attempt}-{rank}")
        watched.now_s += passes_s
        seen = dict.fromkeys(range(3), 0)
        for whose in RANKS:
            began_s = first_s.get(whose[:2])
            is_ending = began_s is not None and watched.now_s < began_s + SETTLE_S
            if whose in live or (is_ending and any(one[:2] == whose[:2] for one in live)):
                seen[whose[2]] += 8
        held = watched.endings.held_by_node()
        assert {each: (watched.state.use.of(f"n{each}") + held.get(f"n{each}", NOTHING)).gpus for each in seen} == seen


def ordered_to_stop(name: str, *nodes: str) -> Any:
    plan = placement(*nodes) | {"stop": STOP}
    job = job_json(name, replicas=len(nodes), phase="Running", placement=plan)
    job["metadata"]["namespace"] = "default"
    return job


# --- the planner ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def api() -> FakeApi:
    """A gang has both nodes; a gang that needs both waits before a job that needs one."""
    api = FakeApi()
    for rank, name in enumerate(("n1", "n2")):
        api.set(NODES, node_json(name))
        api.set(PODS, rank_json("old", rank, name, node=name))
    api.set(JOBS, job_json("old", replicas=2, phase="Running", placement=placement("n1", "n2")))
    api.set(JOBS, job_json("large", replicas=2))
    return api


def end(api: FakeApi, rank: int) -> None:
    api.change(f"{PODS}/old-1-{rank}", lambda item: item["status"].update(phase="Succeeded"))


async def test_a_gang_follows_a_gang_whose_ranks_end_one_by_one(api: FakeApi) -> None:
    async with replica(api, settle_s=60.0, policy=OVERTAKING):
        await api.until(lambda: bool(status(api, "large").get("pending")))
        end(api, 0)
        api.set(JOBS, job_json("small", gpus=1))
        await api.until(lambda: bool(status(api, "small").get("pending")))  # a cycle between the two ends
        end(api, 1)
        await api.until(lambda: state_of(api, "large") == "Released")
    assert sorted(placement_of(api, "large")["nodes"]) == ["n1", "n2"]
    assert placement_of(api, "small") == {}


async def test_what_is_held_is_given_away_by_time_alone(api: FakeApi) -> None:
    api.set(JOBS, job_json("small", gpus=1))
    async with replica(api, settle_s=0.2, policy=OVERTAKING) as one:
        await api.until(lambda: bool(status(api, "small").get("pending")))
        end(api, 0)
        assert state_of(api, "small") is None
        await api.until(lambda: state_of(api, "small") == "Released")
        assert one.cluster.next_expiry_in_s() is None
    assert placement_of(api, "small")["nodes"] == ["n1"]


async def test_foreign_pods_do_not_wait_for_what_is_held(api: FakeApi) -> None:
    async with replica(api, settle_s=60.0) as one:
        await api.until(lambda: bool(status(api, "large").get("pending")))
        end(api, 0)
        await api.until(lambda: one.cluster.next_expiry_in_s() is not None)
        assert one.ask(pod_json("foreign", gpus=1), ["n1"]).passed == ["n1"]


async def test_nobody_is_stopped_for_want_of_what_is_only_held(api: FakeApi) -> None:
    """n1 is the large sub-array's; a guest on n3 could be stopped for a job that fits on n1 in a moment."""
    for name in ("n3", "n4"):
        api.set(NODES, node_json(name))
    api.remove(f"{JOBS}/large")
    for name, node, gpus in (("guest", "n3", 1), ("resident", "n4", 8)):
        job = job_json(name, gpus=gpus, phase="Running", placement=placement(node, plan=f"of-{name}"))
        job["spec"]["resumable"] = True
        api.set(JOBS, job)
        api.set(PODS, rank_json(name, 0, node, node=node, plan=f"of-{name}", gpus=gpus))
    policy = PolicyConfig(policy="coda", arrays=ArraysConfig(large_share=0.75))
    async with replica(api, policy=policy, settle_s=60.0) as one:
        await one.cluster.wait_until_synced()
        end(api, 0)
        await api.until(lambda: one.cluster.next_expiry_in_s() is not None)
        api.set(JOBS, job_json("next"))
        await api.until(lambda: bool(status(api, "next").get("pending")))
        assert one.count("coda_planner_stops_total", cause="Migrate") == 0
        end(api, 1)
        await api.until(lambda: state_of(api, "next") == "Released")
        assert one.count("coda_planner_stops_total", cause="Migrate") == 0
    assert placement_of(api, "next")["nodes"][0] in ("n1", "n2")
