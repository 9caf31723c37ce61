from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.model import NOTHING, Job, Phase, PlacementState, Resources
from coda.placements import InFlight, Rank, kept_for_gangs, planned_node
from coda.placements.filter_rules import foreign_score, full_for, in_flight_by_node
from tests.builders import job, planned, resources

GANG = job("gang", replicas=2, gpus=8)
RELEASED = planned(GANG, "n1", "n2", state=PlacementState.RELEASED)


def rank_of(gang: Job, rank: int, **changes: object) -> Rank:
    plan_id = gang.placement.plan_id if gang.placement else ""
    node = gang.placement.nodes[rank] if gang.placement and 0 <= rank < gang.replicas else None
    own = Rank(job_uid=gang.uid, attempt=gang.attempt, rank=rank, plan_id=plan_id, pinned_to=node, request=gang.request)
    return replace(own, **changes)  # type: ignore[arg-type]  # the test names the fields


@pytest.mark.parametrize(
    ("gang", "rank", "expected"),
    [
        pytest.param(RELEASED, rank_of(RELEASED, 1), "n2", id="released: its node"),
        pytest.param(replace(RELEASED, phase=Phase.LAUNCHED), rank_of(RELEASED, 0), "n1", id="launched: its node"),
        pytest.param(planned(GANG, "n1", "n2"), rank_of(RELEASED, 0), None, id="only committed"),
        pytest.param(GANG, rank_of(RELEASED, 0), None, id="no plan"),
        pytest.param(None, rank_of(RELEASED, 0), None, id="no job"),
        pytest.param(RELEASED, rank_of(RELEASED, 0, job_uid="other"), None, id="a job of that name, recreated"),
        pytest.param(RELEASED, rank_of(RELEASED, 0, plan_id="old"), None, id="another plan"),
        pytest.param(RELEASED, rank_of(RELEASED, 0, attempt=2), None, id="another attempt"),
        pytest.param(replace(RELEASED, attempt=2), rank_of(RELEASED, 0), None, id="the attempt is over"),
        pytest.param(RELEASED, rank_of(RELEASED, 2), None, id="no such rank"),
        pytest.param(RELEASED, rank_of(RELEASED, -1), None, id="an unreadable rank"),
        pytest.param(RELEASED, rank_of(RELEASED, 1, pinned_to="n1"), None, id="pinned to another rank's node"),
        pytest.param(RELEASED, rank_of(RELEASED, 1, pinned_to=None), None, id="not pinned"),
        pytest.param(RELEASED, rank_of(RELEASED, 1, request=NOTHING), "n2", id="asks for less"),
        pytest.param(
            RELEASED, rank_of(RELEASED, 1, request=GANG.request + resources(gpus=1)), None, id="asks for more"
        ),
        pytest.param(
            RELEASED, rank_of(RELEASED, 1, request=GANG.request + resources(cores=1)), None, id="asks for more cores"
        ),
        pytest.param(replace(RELEASED, phase=Phase.RESTARTING), rank_of(RELEASED, 0), None, id="being rolled back"),
        pytest.param(replace(RELEASED, phase=Phase.SUSPENDED), rank_of(RELEASED, 0), None, id="suspended"),
        pytest.param(replace(RELEASED, generation=2), rank_of(RELEASED, 0), None, id="edited while queued"),
    ],
)
def test_a_rank_goes_where_its_released_plan_says(gang: Job | None, rank: Rank, expected: str | None) -> None:
    assert planned_node(gang, rank) == expected


def in_flight(uid: str, request: Resources, *nodes: str) -> InFlight:
    return InFlight(uid=uid, request=request, nodes=nodes or None)


ONE_GPU = resources(gpus=1, cores=1, pods=1)
CPU_ONLY = resources(cores=4, pods=1)


@pytest.mark.parametrize(
    ("request_", "room", "others", "expected"),
    [
        pytest.param(ONE_GPU, resources(gpus=1, cores=1, pods=1), [], set(), id="exactly fits"),
        pytest.param(ONE_GPU, resources(gpus=0, cores=9, pods=9), [], {"n1"}, id="no GPU beside the plan"),
        pytest.param(CPU_ONLY, resources(gpus=-8, cores=9, pods=9), [], set(), id="asks for no GPU: none is missing"),
        pytest.param(ONE_GPU, resources(gpus=8, cores=9, pods=0), [], {"n1"}, id="no pod slot"),
        pytest.param(
            ONE_GPU, resources(gpus=1, cores=9, pods=9), [in_flight("a", ONE_GPU, "n1")], {"n1"}, id="taken in flight"
        ),
        pytest.param(
            ONE_GPU, resources(gpus=1, cores=9, pods=9), [in_flight("a", ONE_GPU)], {"n1"}, id="in flight everywhere"
        ),
        pytest.param(
            ONE_GPU, resources(gpus=1, cores=9, pods=9), [in_flight("a", ONE_GPU, "n2")], set(), id="lands elsewhere"
        ),
        pytest.param(
            ONE_GPU,
            resources(gpus=1, cores=2, pods=9),
            [in_flight("a", CPU_ONLY, "n2"), in_flight("b", resources(cores=1, pods=1), "n1")],
            set(),
            id="only those that may land here count",
        ),
    ],
)
def test_a_foreign_pod_may_not_take_what_is_withheld(
    request_: Resources, room: Resources, others: list[InFlight], expected: set[str]
) -> None:
    total = sum((pod.request for pod in others), NOTHING)
    assert kept_for_gangs(request_, {"n1": room}, total, others) == expected


def test_the_ports_of_other_pods_in_flight_are_left_to_kube_scheduler() -> None:
    port = {"hostPort/80-TCP": 1}
    request, room = replace(ONE_GPU, other=port), resources(gpus=2, cores=9, pods=9)
    others = [in_flight("a", request, "n1")]
    assert kept_for_gangs(request, {"n1": room}, request, others) == set()
    withheld = replace(room, other={"hostPort/80-TCP": -1})
    assert kept_for_gangs(request, {"n1": withheld}, request, others) == {"n1"}
    assert kept_for_gangs(request, {"n1": replace(room, gpus=1)}, request, others) == {"n1"}


def test_a_node_is_full_for_what_its_room_does_not_hold_and_unknown_nodes_are_not_judged() -> None:
    rooms = {"n1": resources(gpus=0, cores=9, pods=9), "n2": resources(gpus=1, cores=9, pods=9), "n3": NOTHING}
    assert full_for(ONE_GPU, ["n1", "n2", "n4"], rooms) == {"n1"}


pods = st.lists(
    st.tuples(
        st.integers(1, 8), st.none() | st.lists(st.sampled_from(["n1", "n2", "n3", "n4"]), unique=True).map(tuple)
    ),
    max_size=6,
)


@given(pods)
def test_in_flight_per_node_is_the_plain_sum(drawn: list[tuple[int, tuple[str, ...] | None]]) -> None:
    entries = [
        InFlight(uid=str(number), request=resources(gpus=gpus, pods=1), nodes=nodes)
        for number, (gpus, nodes) in enumerate(drawn)
    ]
    names = ["n1", "n2", "n3"]
    expected = {
        name: sum((pod.request for pod in entries if pod.nodes is None or name in pod.nodes), NOTHING)
        for name in names
        if any(pod.nodes is None or name in pod.nodes for pod in entries)
    }
    assert in_flight_by_node(entries, names) == expected


@given(pods, st.integers(0, 8), st.integers(-2, 12))
def test_the_quick_verdict_is_the_exact_one(
    drawn: list[tuple[int, tuple[str, ...] | None]], gpus: int, free: int
) -> None:
    others = [
        InFlight(uid=str(number), request=resources(gpus=amount, pods=1), nodes=nodes)
        for number, (amount, nodes) in enumerate(drawn)
    ]
    request, room = resources(gpus=gpus, pods=1), resources(gpus=free, pods=20)
    landing = sum((pod.request for pod in others if pod.nodes is None or "n1" in pod.nodes), NOTHING)
    refused = kept_for_gangs(request, {"n1": room}, sum((pod.request for pod in others), NOTHING), others)
    assert refused == (set() if request.fits_in(room - landing) else {"n1"})


@pytest.mark.parametrize(("free_gpus", "expected"), [(-1, 10), (0, 10), (3, 7), (8, 2), (10, 0), (64, 0)])
def test_fuller_nodes_suit_foreign_pods_better(free_gpus: int, expected: int) -> None:
    assert foreign_score(free_gpus) == expected
