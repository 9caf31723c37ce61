"""Laws: what is kept change by change says the same as looking at every node, for every request and every history."""

from hypothesis import given
from hypothesis import strategies as st

from coda.model import NOTHING, Resources
from coda.placements import InFlight, kept_for_gangs
from coda.placements.filter_rules import ENOUGH_NODES, MAX_SCORE, best_candidates, full_for
from coda_extender.guard.capacity_index import CapacityIndex

NAMES = ("n1", "n2", "n3", "n4")
OTHER = ("rdma/hca", "gpus", "hugepages-2Mi")  # names are any text, a field's too
PORTS = ("hostPort/80-TCP", "hostPort/29500-TCP")  # of which no node lists any


def amounts(least: int) -> st.SearchStrategy[Resources]:
    number, ports = st.integers(least, 3), st.integers(least, 2 if least == 0 else 0)
    return st.builds(
        Resources,
        cpu_m=number,
        memory_bytes=number,
        gpus=number,
        pods=number,
        other=st.builds(
            dict[str, int].__or__,
            st.dictionaries(st.sampled_from(OTHER), number, max_size=2),
            st.dictionaries(st.sampled_from(PORTS), ports),
        ),
    )


changes = st.lists(st.tuples(st.sampled_from(NAMES), st.none() | amounts(-2)), max_size=12)


@given(changes, st.lists(amounts(0), min_size=1, max_size=3))
def test_too_small_is_what_a_walk_over_all_nodes_finds(
    history: list[tuple[str, Resources | None]], requests: list[Resources]
) -> None:
    index, free_by_node = CapacityIndex(), dict[str, Resources]()
    for name, free in history:
        index.set_free(name, free)
        free_by_node.pop(name, None)
        if free is not None:
            free_by_node[name] = free
        for request in requests:
            assert index.too_small_for(request) == full_for(request, NAMES, free_by_node)


@given(
    st.dictionaries(st.sampled_from(NAMES), amounts(-2)),
    amounts(0),
    st.lists(st.tuples(amounts(0), st.none() | st.lists(st.sampled_from(NAMES), unique=True).map(tuple)), max_size=4),
)
def test_the_nodes_refused_are_the_same_with_and_without_the_index(
    free_by_node: dict[str, Resources], request: Resources, drawn: list[tuple[Resources, tuple[str, ...] | None]]
) -> None:
    others = [InFlight(uid=str(at), request=more, nodes=nodes) for at, (more, nodes) in enumerate(drawn)]
    total = sum((pod.request for pod in others), NOTHING)
    index = CapacityIndex()
    for name, free in free_by_node.items():
        index.set_free(name, free)
    walked = kept_for_gangs(request, free_by_node, total, others)
    assert kept_for_gangs(request, free_by_node, total, others, too_small_for=index.too_small_for) == walked
    for name, free in free_by_node.items():
        here = sum((pod.request for pod in others if pod.nodes is None or name in pod.nodes), NOTHING)
        here = here.of_kinds(Resources(other=dict.fromkeys(OTHER, 1)))  # kube-scheduler judges their ports
        assert (name in walked) is not (request.fits_in(free) and request.fits_in(free - here))


runs = st.lists(st.tuples(st.integers(0, MAX_SCORE) | st.just(MAX_SCORE), st.integers(1, ENOUGH_NODES)), max_size=5)


@given(runs, st.integers(0, 5))
def test_the_best_candidates_are_the_first_of_those_sorted_by_score(alike: list[tuple[int, int]], unknown: int) -> None:
    scores = [score for score, count in alike for _ in range(count)]
    names = [f"n{at}" for at in range(len(scores) + unknown)]
    score_by_node = dict(zip(names, scores, strict=False))
    best = sorted(names, key=lambda name: -score_by_node.get(name, 0))[:ENOUGH_NODES]
    expected = [name for name in names if name in set(best)]
    full_nodes = {name for name, score in score_by_node.items() if score == MAX_SCORE}
    assert list(best_candidates(names, score_by_node)) == expected
    assert list(best_candidates(names, score_by_node, full_nodes)) == expected
