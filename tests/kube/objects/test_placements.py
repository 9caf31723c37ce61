"""Placements as JSON and back: nothing of a plan is lost between two leaders."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coda.model import Placement, PlacementState
from coda.model.job import StopCause, StopOrder
from coda_kube.objects.read import placement_from_json
from coda_kube.objects.write import placement_json

MOMENTS = st.integers(1, 4_000_000_000).map(float)
STOPS = st.builds(
    StopOrder, cause=st.sampled_from(StopCause), by=st.sampled_from(["team/a", "other/b"]), since_s=MOMENTS
)


@given(
    st.builds(
        Placement,
        attempt=st.integers(1, 99),
        plan_id=st.text("abcdef0123456789", min_size=1, max_size=16),
        epoch=st.integers(0, 9),
        generation=st.integers(1, 9),
        state=st.sampled_from(PlacementState),
        nodes=st.lists(st.sampled_from(["n1", "n2"]), min_size=1, max_size=3).map(tuple),
        cpus_per_replica=st.integers(1, 64),
        committed_s=MOMENTS,
        bind_deadline_s=MOMENTS,
        borrows=st.booleans(),
        gpus=st.lists(st.integers(0, 15), max_size=3).map(tuple),
        answer=st.none(),
        stop=st.none() | STOPS,
    )
)
def test_a_placement_is_read_as_it_was_written(placement: Placement) -> None:
    assert placement_from_json({"placement": placement_json(placement)}) == placement
