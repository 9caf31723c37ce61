"""What the planner is told of whole GPUs: whose, how busy while alone, and how much memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from coda.sharing.config import GIB
from coda_agent.gpus import GpuReading, Health, LibraryState, Moment, Snapshot
from coda_agent.gpus.allocations import Grant
from coda_agent.gpus.devices import Gpu, GpuProcess, Memory
from coda_agent.gpus.ownership import Evidence, NodePod, find_owners
from coda_agent.gpus.processes import GpuUser
from coda_agent.report.gpu_uses import GpuUse, GpuUses
from coda_agent.sensor import Senses

A, B = "GPU-a", "GPU-b"


def grant(pod: str, resource: str, *ids: str) -> Grant:
    return Grant(namespace="default", pod=pod, container="main", device_ids=tuple((resource, one) for one in ids))


def whole(pod: str, *gpus: str) -> Grant:
    return grant(pod, "nvidia.com/gpu", *gpus)


def seat(pod: str, gpu: str) -> Grant:
    return grant(pod, "coda.scheduler/gpu-0", f"{gpu}::0")


@dataclass
class Node:
    """Two GPUs, of which each round is told what is on them."""

    uses: GpuUses = field(default_factory=GpuUses)
    now_s: float = 0.0

    def seconds(
        self,
        count: int,
        *grants: Grant,
        share: float | None = 0.4,
        memory: Mapping[str, int] | None = None,
        used_gib: int = 0,
        processes: Sequence[str] | None = None,
        known: bool = True,
        crowded: Mapping[str, tuple[str, ...]] | None = None,
        awaited: Sequence[str] = (),
        heard: Sequence[str] | None = None,
    ) -> Mapping[str, GpuUse]:
        """Rounds of a second. `memory`: GiB by pod; `processes`: the pods with a process on GPU a, else all with it."""
        names = [one.pod for one in grants if any(A in device for _, device in one.device_ids)]
        names = names if processes is None else list(processes)
        users = [GpuUser(pid=number, pod_uid=f"u-{name}") for number, name in enumerate(names)]
        gpus = [
            Gpu(uuid=uuid, index=n, minor=n, name="", pci_bus_id="", memory_bytes=80 * GIB)
            for n, uuid in enumerate((A, B))
        ]
        told = tuple(
            GpuProcess(pid=number, memory_bytes=(memory[name] * GIB if memory and name in memory else None))
            for number, name in enumerate(names)
        )
        readings = (
            GpuReading(
                gpu=gpus[0],
                health=Health.READY,
                share=share,
                memory=Memory(total_bytes=80 * GIB, used_bytes=used_gib * GIB),
                processes=told,
            ),
            GpuReading(gpu=gpus[1], health=Health.READY, share=0.0, processes=()),
        )
        pods = [NodePod(uid=f"u-{one.pod}", namespace="default", name=one.pod) for one in grants]
        evidence = Evidence(gpus=gpus, grants=grants, pods=pods, users={A: users, B: []}, uuid_by_claim={})
        found: Mapping[str, GpuUse] = {}
        for _ in range(count):
            self.now_s += 1
            found = self.uses.see(
                Senses(
                    at=Moment(monotonic_s=self.now_s, wall_s=self.now_s, node_wall_s=self.now_s),
                    gpus=Snapshot(at_s=self.now_s, library=LibraryState.READY, readings=readings),
                    ownerships=find_owners(evidence),
                    grants=grants,
                    are_grants_known=known,
                    users={A: users, B: []},
                ),
                crowded or {},
                awaited,
                heard,
            )
        return found


@pytest.fixture
def node() -> Node:
    return Node()


def test_it_is_told_who_has_a_gpu_whole_and_later_how_busy_it_is(node: Node) -> None:
    assert node.seconds(2, whole("g", A)) == {A: GpuUse(pod_uids=("u-g",)), B: GpuUse(pod_uids=())}
    assert node.seconds(58, whole("g", A))[A].utilization is None
    assert node.seconds(2, whole("g", A), memory={"g": 13})[A] == GpuUse(
        pod_uids=("u-g",), utilization=0.4, peak_bytes=13 * GIB
    )


def test_beside_a_guest_nothing_is_learned_of_its_utilisation_and_its_own_memory_counts(node: Node) -> None:
    node.seconds(100, whole("g", A), share=0.4, memory={"g": 10})
    beside = node.seconds(500, whole("g", A), seat("o", A), share=1.0, memory={"g": 12, "o": 30}, used_gib=42)
    assert beside[A] == GpuUse(pod_uids=("u-g",), utilization=0.4, peak_bytes=12 * GIB)


def test_what_is_told_moves_in_steps_and_not_with_every_breath(node: Node) -> None:
    node.seconds(200, whole("g", A), share=0.40)
    told = {node.seconds(1, whole("g", A), share=0.40 + 0.06 * (number % 2))[A].utilization for number in range(500)}
    assert told == {0.4}
    assert node.seconds(600, whole("g", A), share=0.9)[A].utilization == 0.9


def test_another_pod_on_the_gpu_begins_anew(node: Node) -> None:
    node.seconds(100, whole("g", A), memory={"g": 40})
    assert node.seconds(2, whole("h", A), memory={"h": 5})[A] == GpuUse(pod_uids=("u-h",), peak_bytes=5 * GIB)


def test_a_pod_with_no_process_on_it_yet_shows_nothing(node: Node) -> None:
    assert node.seconds(300, whole("g", A), share=0.0, processes=(), used_gib=1)[A] == GpuUse(pod_uids=("u-g",))


def test_where_the_driver_tells_no_memory_of_processes_that_of_the_card_counts_while_it_is_alone(node: Node) -> None:
    assert node.seconds(2, whole("g", A), used_gib=7)[A].peak_bytes == 7 * GIB
    assert node.seconds(2, whole("g", A), seat("o", A), used_gib=50)[A].peak_bytes == 7 * GIB


def test_a_guest_alone_leaves_the_gpu_to_nobody(node: Node) -> None:
    assert node.seconds(2, seat("o", A))[A] == GpuUse(pod_uids=())


def test_two_pods_with_the_whole_gpu_are_both_told_and_nothing_else(node: Node) -> None:
    assert node.seconds(200, whole("g", A), whole("h", f"{A}::1"))[A] == GpuUse(pod_uids=("u-g", "u-h"))


def test_of_a_gpu_that_a_stranger_uses_nothing_is_told(node: Node) -> None:
    assert node.seconds(2, whole("g", A), processes=("g", "stranger")).keys() == {B}


def test_a_guest_whose_process_comes_before_its_grant_takes_nothing_of_what_is_known(node: Node) -> None:
    before = node.seconds(100, whole("g", A), memory={"g": 10})
    assert A not in node.seconds(3, whole("g", A), processes=("g", "o"))
    assert node.seconds(1, whole("g", A), seat("o", A), memory={"g": 10, "o": 5})[A] == before[A]


def test_while_the_kubelet_does_not_answer_what_was_known_stays(node: Node) -> None:
    before = node.seconds(100, whole("g", A))
    assert node.seconds(5, known=False) == before
    assert node.seconds(1, whole("g", A)) == before


@pytest.mark.parametrize("known", [True, False], ids=["", "the kubelet does not answer"])
def test_who_is_crowded_out_is_told_with_the_gpu_and_no_longer_than_that_is_so(node: Node, *, known: bool) -> None:
    pods = whole("g", A), seat("o", A)
    node.seconds(2, *pods)
    told = node.seconds(1, *pods, crowded={A: ("u-o",)}, known=known)
    assert (told[A].crowded_out, told[A].pod_uids, told[B].crowded_out) == (("u-o",), ("u-g",), ())
    assert node.seconds(1, *pods, known=known)[A].crowded_out == ()


def test_who_is_waited_for_is_told_though_a_stranger_uses_the_gpu_and_nothing_else_of_it(node: Node) -> None:
    """A job waits, and fails soon; a process that nobody explains changes nothing about that."""
    pods = whole("g", A), seat("o", A)
    node.seconds(100, whole("g", A), memory={"g": 40})
    told = node.seconds(2, *pods, processes=("g", "o", "stranger"), crowded={A: ("u-o",)}, awaited=(A,))
    assert told[A] == GpuUse(pod_uids=("u-g",), crowded_out=("u-o",), waits=True)
    assert A not in node.seconds(2, *pods, processes=("g", "o", "stranger"))
    assert node.seconds(1, *pods)[A].peak_bytes == 40 * GIB


def test_whether_the_one_that_has_a_gpu_is_heard_is_told_where_gpus_are_shared(node: Node) -> None:
    assert node.seconds(2, whole("g", A))[A].heard is None
    told = node.seconds(2, whole("g", A), heard=[A])
    assert (told[A].heard, told[B].heard) == (True, None)
    assert node.seconds(2, whole("g", A), heard=[])[A].heard is False
    assert node.seconds(2, whole("g", A), heard=[A], known=False)[A].heard is True
