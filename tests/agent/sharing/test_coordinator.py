"""From what processes say to what they may have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from coda.sharing.config import GIB, SharingConfig
from coda.sharing.memory_limits import MemoryControl
from coda_agent.cluster import LocalPod
from coda_agent.gpus import GpuReading, Health
from coda_agent.gpus.allocations import Grant
from coda_agent.gpus.devices import Gpu, GpuProcess
from coda_agent.gpus.processes import GpuUser
from coda_agent.sharing import Coordinator, GpuOrder, SharedGpu, shared_gpus_from
from coda_agent.sharing.members import Process, Seen, use_of
from coda_agent.sharing.messages import MOST_GPUS, GpuClaim, Message

GPU = "GPU-1"
CONFIG = SharingConfig(measure_s=1.0, arriving_s=5.0)


def shared(guaranteed: str | None = "g", opportunistic: Sequence[str] = ("o",), gpu: str = GPU) -> SharedGpu:
    return SharedGpu(
        uuid=gpu, memory_bytes=80 * GIB, guaranteed=guaranteed, opportunistic=tuple(opportunistic), seen_bytes={}
    )


def claim(device: int, *, host: int = 0, floor: int = 1, reserve: int = 64, refusals: int = 0) -> GpuClaim:
    return GpuClaim(
        gpu=GPU,
        device_bytes=device * GIB,
        host_bytes=host * GIB,
        reserve_bytes=reserve * GIB,
        floor_bytes=floor * GIB,
        refusals=refusals,
    )


def steps(count: int, *claims: GpuClaim, took_s: float = 0.1, kind: str = "steps") -> Message:
    return Message(kind=kind, steps=(took_s,) * 10, count=count, gpus=claims)


class Board:
    """A coordinator, two processes, and a clock."""

    def __init__(self, *gpus: SharedGpu) -> None:
        self.coordinator = Coordinator(CONFIG, context_bytes=0)
        self.gpus = gpus or (shared(),)
        self.now_s = 0.0

    def seconds(self, count: int, **said: Message) -> dict[str, GpuOrder]:
        """Each process says its words once a second; the last orders, by process."""
        found: dict[str, GpuOrder] = {}
        for _ in range(count):
            self.now_s += 1
            for peer, message in said.items():
                self.coordinator.take(peer, message, self.now_s)
            orders = self.coordinator.round(self.gpus, self.now_s)
            found = {str(peer): one[0] for peer, one in orders.items()}
        return found


@pytest.fixture
def board() -> Board:
    board = Board()
    board.coordinator.join("g1", "g")
    board.coordinator.join("o1", "o")
    return board


def test_a_newcomer_beside_a_guaranteed_job_is_paced_and_not_limited(board: Board) -> None:
    orders = board.seconds(1, g1=Message(kind="hello"), o1=Message(kind="hello"))
    assert (orders["o1"].share, orders["o1"].device_bytes, orders["o1"].hold_s) == (CONFIG.floor_share, None, 60.0)


def test_a_new_agent_does_not_lift_the_limit_of_a_job_that_says_what_it_has_done(board: Board) -> None:
    """No order before that: the job keeps what the agent before has ordered."""
    guaranteed = Message(kind="hello", count=700, gpus=(claim(50, floor=40),))
    assert set(board.seconds(1, g1=guaranteed)) == {"g1"}
    first = board.seconds(1, o1=Message(kind="hello", count=900, gpus=(claim(20, host=30, floor=10),)))
    assert first["o1"].device_bytes is not None
    assert 10 * GIB <= first["o1"].device_bytes <= 30 * GIB


def test_mini_batches_before_the_first_word_are_no_speed() -> None:
    process = Process()
    for kind, count, expected in (("hello", 900, 0.0), ("steps", 904, 2.0)):
        process.take(Message(kind=kind, count=count, gpus=(claim(1),)), 0.0)
        assert use_of("o", GPU, [process], context_bytes=0, seen=Seen(), span_s=2.0).speed == expected


def test_a_share_grows_while_the_guaranteed_job_does_not_suffer(board: Board) -> None:
    first = board.seconds(10, g1=steps(100, claim(20)), o1=steps(50, claim(10)))
    later = board.seconds(10, g1=steps(200, claim(20)), o1=steps(90, claim(10)))
    assert CONFIG.floor_share <= first["o1"].share < later["o1"].share
    hurt = board.seconds(2, g1=steps(300, claim(20), took_s=0.2), o1=steps(99, claim(10)))
    assert hurt["o1"].share < later["o1"].share


def test_a_guaranteed_job_is_never_limited_or_paced_and_needs_nobody(board: Board) -> None:
    for took_s in (0.1, 5.0, 0.0001, 0.1):
        for host in (0, 7):
            orders = board.seconds(3, g1=steps(9, claim(70, host=host), took_s=took_s), o1=steps(9, claim(30)))
            assert (orders["g1"].share, orders["g1"].device_bytes, orders["g1"].hold_s) == (1000, None, 0.0)


def test_without_host_memory_a_job_that_does_not_fit_stands_still_and_does_not_fail(board: Board) -> None:
    board.seconds(10, g1=steps(100, claim(20)), o1=steps(50, claim(30, reserve=0)))
    orders = board.seconds(3, g1=steps(100, claim(60, host=5)), o1=steps(90, claim(30, reserve=0)))
    assert (orders["o1"].device_bytes, orders["o1"].share) == (None, 0)


def test_who_stands_still_for_five_minutes_should_move_until_there_is_room(board: Board) -> None:
    grown = {"g1": steps(100, claim(60)), "o1": steps(90, claim(30, reserve=0))}
    board.seconds(300, **grown)
    assert board.coordinator.to_move == {}
    board.seconds(1, **grown)
    assert board.coordinator.to_move == {GPU: ("o",)}
    board.gpus = (shared(guaranteed=None),)
    board.seconds(1, **grown)
    assert board.coordinator.to_move == {}


def test_a_job_that_is_not_paced_holds_that_for_seconds_only(board: Board) -> None:
    """It must give memory back to one that arrives. We may die in that second."""
    board.coordinator.take("o1", steps(50, claim(2), kind="done"), 0.5)
    first, then = (board.seconds(1, g1=steps(1, claim(1)), o1=steps(60, claim(30))) for _ in range(2))
    assert (first["o1"].share, first["o1"].hold_s) == (1000, 3.0)
    assert then["o1"].share < 1000
    assert then["o1"].hold_s == 60.0


def test_what_a_job_keeps_between_steps_is_what_it_had_when_its_limit_was_reached(board: Board) -> None:
    """Tensors leave gaps: a limit at the sum of their sizes could never be reached, and the job never be paced."""
    board.coordinator.take("o1", steps(50, claim(30, floor=10), kind="done"), 0.5)
    orders = board.seconds(1, g1=steps(1, claim(1)), o1=steps(60, claim(30, floor=10)))
    assert (orders["o1"].device_bytes, orders["o1"].share) == (30 * GIB, CONFIG.floor_share)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(steps(50, claim(0, floor=1000)), id="it says that it keeps more than it has"),
        pytest.param(steps(50, claim(1)), id="it had more when its limit was reached, over a minute ago"),
    ],
)
def test_what_a_process_keeps_is_never_more_than_its_peak(board: Board, said: Message) -> None:
    board.coordinator.take("o1", steps(50, claim(10), kind="done"), 0.5)
    assert "o1" in board.seconds(90, g1=steps(1, claim(1)), o1=said)


def test_made_up_gpus_take_no_memory() -> None:
    process = Process()
    for number in range(1000):
        made_up = replace(claim(1), gpu=f"GPU-{number}")
        process.take(Message(kind="done", gpus=(made_up,)), number)
    assert max(len(process.peaks), len(process.least), len(process.refusals)) == MOST_GPUS


LIES = {  # what is said, what the driver sees, and what the neighbour has at least
    "more than the card": ({"h0": claim(77, floor=77, reserve=1)}, 1, 20),
    "the same on the host, to which the neighbour loses no more than it can": (
        {"h0": claim(0, host=77, floor=77, reserve=77)},
        1,
        8,
    ),
    "many processes that only name the GPU": ({f"h{number}": claim(0, floor=0) for number in range(64)}, 0, 20),
    "many that have something of it": ({f"h{number}": claim(1, floor=1) for number in range(64)}, 2, 20),
}


@pytest.mark.parametrize(("said", "seen_gib", "least_gib"), LIES.values(), ids=list(LIES))
@pytest.mark.parametrize("control", [MemoryControl.FULL, MemoryControl.FRACTION])
def test_what_a_guest_says_beyond_what_the_driver_sees_stops_no_neighbour(
    said: dict[str, GpuClaim], seen_gib: int, least_gib: int, control: MemoryControl
) -> None:
    board = Board(replace(shared(None, ("h", "v")), seen_bytes={"v": 21 * GIB, "h": seen_gib * GIB}))
    board.coordinator = Coordinator(CONFIG)
    board.coordinator.join("v", "v")
    for peer in said:
        board.coordinator.join(peer, "h")
    liars = {peer: replace(steps(9, one), control=control) for peer, one in said.items()}
    orders = board.seconds(5, v=steps(9, claim(20, floor=8)), **liars)
    assert orders["v"].share == 1000
    assert (orders["v"].device_bytes or 0) >= least_gib * GIB


def test_processes_that_only_name_the_gpu_need_no_context_there_though_the_driver_says_nothing() -> None:
    board = Board(shared(None, ("h", "v")))
    board.coordinator = Coordinator(CONFIG)
    for peer, pod_uid in [("v", "v"), *((f"h{number}", "h") for number in range(64))]:
        board.coordinator.join(peer, pod_uid)
    said = {f"h{number}": steps(9, claim(0, floor=0)) for number in range(64)}
    assert (board.seconds(5, v=steps(9, claim(20)), **said)["v"].device_bytes or 0) >= 20 * GIB


def test_a_job_without_host_memory_that_grew_since_the_driver_was_asked_is_not_ended(board: Board) -> None:
    board.gpus = (replace(shared(), seen_bytes={"g": 50 * GIB, "o": 20 * GIB}),)
    orders = board.seconds(10, g1=steps(100, claim(50)), o1=steps(50, claim(30, reserve=0)))
    assert orders["o1"].device_bytes is None
    assert orders["o1"].share >= CONFIG.floor_share


def test_a_limit_is_divided_among_the_processes_of_a_pod(board: Board) -> None:
    board.coordinator.join("o2", "o")
    orders = board.seconds(3, g1=steps(9, claim(20)), o1=steps(9, claim(10)), o2=steps(9, claim(10)))
    assert orders["o1"].device_bytes == orders["o2"].device_bytes
    assert orders["o1"].device_bytes is not None
    assert 2 * orders["o1"].device_bytes <= 60 * GIB


def test_no_process_of_a_pod_gets_less_than_its_peak_while_all_fit(board: Board) -> None:
    """Without host memory it would fail: the large one trains, and the small one evaluates."""
    board.coordinator.join("o2", "o")
    said = {
        "g1": steps(9, claim(10)),
        "o1": steps(9, claim(40, reserve=0)),
        "o2": steps(9, claim(2, reserve=0)),
    }
    first, later = board.seconds(1, **said), board.seconds(70, **said)
    assert (first["o1"].device_bytes, first["o2"].device_bytes) == (40 * GIB, 2 * GIB)
    rest = (80 - 42) * GIB - math.ceil(CONFIG.peak_margin * 10 * GIB)
    assert (later["o1"].device_bytes, later["o2"].device_bytes) == (40 * GIB + rest // 2, 2 * GIB + rest // 2)


def test_a_job_alone_may_go_on_alone(board: Board) -> None:
    board.gpus = (shared(guaranteed=None),)
    orders = board.seconds(1, o1=steps(9, claim(10)))
    assert (orders["o1"].alone, orders["o1"].share, orders["o1"].device_bytes) == (True, 1000, None)


def test_a_pod_that_is_not_on_the_gpu_gets_no_order_and_counts_for_nothing(board: Board) -> None:
    board.coordinator.join("x1", "stranger")
    orders = board.seconds(12, g1=steps(9, claim(20)), o1=steps(9, claim(10)), x1=steps(9, claim(79), took_s=99.0))
    assert set(orders) == {"g1", "o1"}
    assert board.coordinator.share_of("g")[2] == pytest.approx(1.0)


def test_a_neighbour_that_is_not_connected_is_named() -> None:
    board = Board()
    board.coordinator.join("g1", "g")
    board.seconds(1, g1=steps(9, claim(20)))
    assert board.coordinator.problems == (
        "the pod with uid o shares GPU-1 and cannot be controlled: it is not connected, or says so",
    )


def test_a_process_that_left_is_forgotten(board: Board) -> None:
    board.coordinator.leave("o1")
    board.coordinator.leave("o1")
    assert set(board.seconds(1, g1=steps(9, claim(20)), o1=steps(9, claim(10)))) == {"g1"}


def test_it_is_known_on_which_gpus_the_guaranteed_job_is_heard(board: Board) -> None:
    board.seconds(1, o1=steps(9, claim(1)))
    assert board.coordinator.heard == frozenset()
    board.seconds(1, g1=steps(9, claim(1)))
    assert board.coordinator.heard == {GPU}
    board.seconds(400, o1=steps(9, claim(1)))
    assert board.coordinator.heard == frozenset()


def pod(name: str) -> LocalPod:
    return LocalPod(
        uid=f"uid-{name}",
        namespace="default",
        name=name,
        runs=True,
        ended=False,
        gpus=1,
        request_cores=1,
        limit_cores=None,
        quality="Burstable",
        member=None,
    )


def grant(name: str, resource: str, device: str) -> Grant:
    return Grant(namespace="default", pod=name, container="main", device_ids=((resource, device),))


@pytest.mark.parametrize(
    ("grants", "guaranteed", "opportunistic"),
    [
        pytest.param([grant("a", "nvidia.com/gpu", GPU)], "uid-a", (), id="whole"),
        pytest.param([grant("a", "coda.scheduler/gpu-0", f"{GPU}::2")], None, ("uid-a",), id="a seat"),
        pytest.param(
            [grant("a", "nvidia.com/gpu", GPU), grant("b", "coda.scheduler/gpu-0", f"{GPU}::0")],
            "uid-a",
            ("uid-b",),
            id="both",
        ),
        pytest.param(
            [grant("a", "coda.scheduler/gpu-0", f"{GPU}::2"), grant("unseen", "nvidia.com/gpu", GPU)],
            "default/unseen",
            ("uid-a",),
            id="whole, to a pod that the list does not have yet",
        ),
        pytest.param(
            [grant("a", "nvidia.com/gpu", GPU), grant("unseen", "coda.scheduler/gpu-0", f"{GPU}::0")],
            "uid-a",
            (),
            id="a seat, to a pod that the list does not have yet",
        ),
        pytest.param(
            [grant("a", "coda.scheduler/gpu-0", f"{GPU}::2"), grant("ended", "nvidia.com/gpu", GPU)],
            None,
            ("uid-a",),
            id="whole, to a pod that has ended",
        ),
    ],
)
def test_roles_follow_the_kubelets_grants(
    grants: list[Grant], guaranteed: str | None, opportunistic: tuple[str, ...]
) -> None:
    device = Gpu(uuid=GPU, index=0, minor=0, name="", pci_bus_id="", memory_bytes=GIB)
    reading = GpuReading(gpu=device, health=Health.READY, processes=(GpuProcess(pid=7, memory_bytes=5),))
    users = {GPU: [GpuUser(pid=7, pod_uid="uid-a")]}
    pods = [pod("a"), pod("b"), replace(pod("ended"), ended=True)]
    (found,) = shared_gpus_from([reading], grants, pods, users)
    assert (found.guaranteed, found.opportunistic, found.seen_bytes) == (guaranteed, opportunistic, {"uid-a": 5})


def test_a_job_is_paced_beside_a_pod_that_the_list_does_not_have_yet(board: Board) -> None:
    """After an outage the agent's watch comes back long after the kubelet's grants."""
    device = Gpu(uuid=GPU, index=0, minor=0, name="", pci_bus_id="", memory_bytes=80 * GIB)
    held = (GpuProcess(pid=7, memory_bytes=60 * GIB), GpuProcess(pid=8, memory_bytes=10 * GIB))
    reading = GpuReading(gpu=device, health=Health.READY, processes=held)
    users = {GPU: [GpuUser(pid=7, pod_uid="uid-unseen"), GpuUser(pid=8, pod_uid="uid-a")]}
    grants = [grant("a", "coda.scheduler/gpu-0", f"{GPU}::2"), grant("unseen", "nvidia.com/gpu", GPU)]
    board.gpus = shared_gpus_from([reading], grants, [pod("a")], users)
    assert board.gpus[0].seen_bytes == {"default/unseen": 60 * GIB, "uid-a": 10 * GIB}
    board.coordinator.join("a1", "uid-a")
    orders = board.seconds(60, a1=steps(9, claim(10, floor=5)))
    assert (orders["a1"].alone, orders["a1"].share) == (False, CONFIG.floor_share)
    assert orders["a1"].device_bytes is not None
    assert orders["a1"].device_bytes <= 20 * GIB


def test_gpus_that_others_share_out_are_left_alone() -> None:
    """NVIDIA's time-slicing gives one GPU to two pods whole."""
    device = Gpu(uuid=GPU, index=0, minor=0, name="", pci_bus_id="", memory_bytes=GIB)
    grants = [grant("a", "nvidia.com/gpu", f"{GPU}::0"), grant("b", "nvidia.com/gpu", f"{GPU}::1")]
    assert shared_gpus_from([GpuReading(gpu=device, health=Health.READY)], grants, [pod("a"), pod("b")], {}) == ()
