"""After any changes, the planner process's copy is what the caches show, and it decides the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coda.cycle import CycleCache, CycleSnapshot, Part, SnapshotReplica, review_snapshot, run_cycle
from coda.model import JobId, Resources
from coda.model.decision import Denial, Grant, Refusal, Start, Stop
from coda.placements import InFlight
from coda.policy import PolicyConfig
from coda_extender.guard.in_flight import InFlightPods
from coda_extender.planner.snapshot_feed import SnapshotFeed
from coda_extender.planner_process import (
    AnswerEnd,
    ChangedRefusals,
    Kind,
    Message,
    Orders,
    Question,
    ReviewOf,
    Values,
)
from coda_extender.planner_process.answering import Answering
from coda_kube.cluster_state import ClusterState
from tests.extender.deciders import through_bytes
from tests.extender.objects import Item, job_json, node_json, placement, pod_json, rank_json

NODES = ("n1", "n2", "n3")
JOBS = ("a", "b", "c", "d")
NOW_S = 1_800_000_000.0

Step = Callable[["Both"], None]


class Both:
    """A replica's caches, and the copy that the planner process keeps of them."""

    def __init__(self) -> None:
        self.state = ClusterState(lambda: self.now_s)
        self.held_back: dict[str, Resources] = {}
        self.now_s = 0.0
        self.in_flight = InFlightPods(lambda: self.now_s, lambda: None)
        self.feed = SnapshotFeed(self.state, self.in_flight, lambda: self.held_back)
        self.copy = SnapshotReplica()
        self.answering = Answering()
        self.refusal_by_job: dict[JobId, Refusal] = {}
        self._items: dict[tuple[str, str], Item] = {}

    def set(self, kind: str, item: Item | None, name: str) -> None:
        """An object came, changed or went."""
        old = self._items.pop((kind, name), None)
        if item is not None:
            item["metadata"].setdefault("namespace", "default") if kind != "node" else None
            self._items[kind, name] = item
        if old is not None or item is not None:
            getattr(self.state, f"on_{kind}")(old, item)

    def tell(self) -> None:
        """The planner process hears of everything."""
        for values in self.feed.changes():
            message = through_bytes(values)
            assert isinstance(message, Values)
            if message.is_first_of_all:
                self.copy.clear(message.part)
            self.copy.change(message.part, message.items)
            assert not [*self.answering.take(message)]

    def original(self) -> CycleSnapshot:
        world = self.state.snapshot(self.held_back)
        return CycleSnapshot(world=world, foreign=self.in_flight.pods(), epoch=2, now_s=NOW_S)

    def ask(self, kind: Kind) -> list[Message]:
        return [through_bytes(answer) for answer in self.answering.take(Question(kind, 2, NOW_S))]


def a_node(name: str, gpus: int, *, ready: bool) -> Step:
    return lambda both: both.set("node", node_json(name, gpus=gpus, ready=ready), name)


def a_job(name: str, phase: str, replicas: int, placed: tuple[str, ...] | None, *, committed: bool) -> Step:
    more: dict[str, Any] = {}
    if placed is not None and len(placed) >= replicas:
        more["placement"] = placement(*placed[:replicas], state="Committed" if committed else "Released", epoch=1)
    return lambda both: both.set("job", job_json(name, replicas=replicas, gpus=4, phase=phase, **more), name)


def a_rank(job: str, rank: int, pin: str, *, bound: bool) -> Step:
    pod = rank_json(job, rank, pin, node=pin if bound else None, gpus=4)
    return lambda both: both.set("pod", pod, f"{job}-{rank}")


def a_foreign_pod(number: int, node: str) -> Step:
    return lambda both: both.set("pod", pod_json(f"web-{number}", gpus=1, node=node), f"web-{number}")


def a_quota(hard: int) -> Step:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": str(hard)}}, "status": {"used": {"pods": "0"}}}
    return lambda both: both.set("quota", quota, "q")


def gone(kind: str, name: str) -> Step:
    return lambda both: both.set(kind, None, name)


def in_flight(uid: str, nodes: tuple[str, ...] | None) -> Step:
    pod = InFlight(uid=uid, request=Resources(gpus=1, pods=1), nodes=nodes)
    return lambda both: both.in_flight.add(pod, version=1, limit_s=5.0)


def settled(uid: str) -> Step:
    return lambda both: both.in_flight.settle(uid)


def later(seconds: float) -> Step:
    def pass_time(both: Both) -> None:
        both.now_s += seconds

    return pass_time


def held_back(node: str, gpus: int) -> Step:
    def hold(both: Both) -> None:
        both.held_back = {node: Resources(gpus=gpus)} if gpus else {}

    return hold


_names, _jobs = st.sampled_from(NODES), st.sampled_from(JOBS)
_phases = st.sampled_from(("Queued", "Queued", "Launched", "Running", "Suspended", "Succeeded"))
_placed = st.none() | st.tuples(_names, _names, _names)
steps = st.one_of(
    st.builds(a_node, _names, st.integers(2, 8), ready=st.booleans()),
    st.builds(a_job, _jobs, _phases, st.integers(1, 3), _placed, committed=st.booleans()),
    st.builds(a_rank, _jobs, st.integers(0, 2), _names, bound=st.booleans()),
    st.builds(a_foreign_pod, st.integers(0, 2), _names),
    st.builds(a_quota, st.integers(0, 4)),
    st.builds(gone, st.sampled_from(("node",)), _names),
    st.builds(gone, st.sampled_from(("job",)), _jobs),
    st.builds(gone, st.sampled_from(("pod",)), st.sampled_from(("a-0", "b-1", "web-0", "web-1"))),
    st.builds(gone, st.just("quota"), st.just("q")),
    st.builds(in_flight, st.sampled_from(("u1", "u2")), st.none() | st.tuples(_names)),
    st.builds(settled, st.sampled_from(("u1", "u2"))),
    st.builds(later, st.sampled_from((1.0, 10.0))),
    st.builds(held_back, _names, st.integers(0, 4)),
)


def plain(snapshot: CycleSnapshot) -> list[Any]:
    """What a snapshot says, without the order of its values."""
    world = snapshot.world
    return [
        {node.name: node for node in world.nodes},
        {job.id: job for job in world.jobs},
        {(quota.namespace, quota.name): quota for quota in world.quotas},
        {pod.uid: pod for pod in snapshot.foreign},
        dict(world.used),
        dict(world.in_flight),
        dict(world.leaving),
    ]


@given(st.lists(st.lists(steps, max_size=6), max_size=6))
def test_the_copy_equals_the_caches_and_keeps_what_did_not_change(rounds: list[list[Step]]) -> None:
    both = Both()
    before = both.copy.snapshot(epoch=2, now_s=NOW_S)
    for some in rounds:
        for step in some:
            step(both)
        both.tell()
        now = both.copy.snapshot(epoch=2, now_s=NOW_S)
        assert plain(now) == plain(both.original())
        for old, new in zip(plain(before)[:3], plain(now)[:3], strict=True):
            kept = [key for key in old.keys() & new.keys() if old[key] == new[key]]
            assert all(old[key] is new[key] for key in kept)
        before = now


@given(st.lists(st.lists(steps, max_size=6), max_size=6))
def test_the_planner_process_answers_as_one_call_of_the_core(rounds: list[list[Step]]) -> None:
    both = Both()
    for some in rounds:
        for step in some:
            step(both)
        both.tell()
        snapshot = both.original()
        expected = run_cycle(snapshot, PolicyConfig(), CycleCache())
        answer = both.ask(Kind.CYCLE)
        for message in answer:
            if isinstance(message, ChangedRefusals):
                assert message.groups or message.gone
                for generation, reason, jobs in message.groups:
                    both.refusal_by_job.update({job: Refusal(job, generation, reason) for job in jobs})
                for job in message.gone:
                    del both.refusal_by_job[job]
        assert both.refusal_by_job == {refusal.job: refusal for refusal in expected.decision.refusals}
        orders = [item for message in answer if isinstance(message, Orders) for item in message.items]
        for kind, wanted in (
            (Start, expected.decision.starts),
            (Stop, expected.decision.stops),
            (Grant, expected.decision.grants),
            (Denial, expected.decision.denials),
        ):
            assert [item for item in orders if isinstance(item, kind)] == [*wanted]
        end = answer[-1]
        assert isinstance(end, AnswerEnd)
        assert end.jobs_by_code == expected.jobs_by_code
        assert (end.gpus_wanted, end.wake_s) == (expected.gpus_wanted, expected.wake_s)
        assert end.gpus_unmatched == expected.gpus_unmatched
        reviews = [item for message in both.ask(Kind.REVIEW) for item in getattr(message, "items", ())]
        wanted_reviews = [
            ReviewOf(review.job.id, review.action, review.defect, review.awaits_stops)
            for review in review_snapshot(snapshot)
        ]
        assert reviews == wanted_reviews


def test_one_change_is_one_small_message_whatever_the_cluster_s_size() -> None:
    both = Both()
    for number in range(500):
        both.set("node", node_json(f"node-{number}"), f"node-{number}")
        both.set("job", job_json(f"job-{number}"), f"job-{number}")
    both.tell()
    assert [*both.feed.changes()] == []
    both.set("node", node_json("node-7", ready=False), "node-7")
    both.set("job", job_json("job-9", phase="Suspended"), "job-9")
    changes = {values.part: values for values in both.feed.changes()}
    assert {part: [key for key, _ in values.items] for part, values in changes.items()} == {
        Part.NODES: ["node-7"],
        Part.JOBS: ["default/job-9"],
    }
    assert not any(values.is_first_of_all for values in changes.values())


def test_a_reader_that_missed_too_much_reads_everything_again() -> None:
    both = Both()
    both.tell()
    for number in range(20_001):
        both.set("node", node_json("n1", gpus=number), "n1")
    both.set("node", None, "n1")
    both.set("node", node_json("n2"), "n2")
    both.tell()
    assert plain(both.copy.snapshot(epoch=2, now_s=NOW_S)) == plain(both.original())
