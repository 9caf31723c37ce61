"""An evicted CPU job leaves its place to whoever its owner makes next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coda_kube.returned_places import KEPT_S, MOST_PLACES, Place, ReturnedPlaces

TIMES = st.floats(0, 1e9)
EVICTIONS = st.floats(1e9, 1e9 + KEPT_S - 1)


def places_of(*places: Place, owner: str = "web") -> ReturnedPlaces:
    found = ReturnedPlaces()
    for place in places:
        found.add(owner, place)
    return found


def test_the_next_pods_of_the_owner_take_the_oldest_places() -> None:
    places = places_of(Place(20.0, 100.0), Place(10.0, 100.0))
    assert places.taken_by("one", "web", created_s=101.0) == Place(10.0, 100.0)
    assert places.taken_by("one", "web", created_s=101.0) == Place(10.0, 100.0)
    assert places.taken_by("two", "web", created_s=101.0) == Place(20.0, 100.0)
    assert places.taken_by("three", "web", created_s=101.0) is None


def test_who_was_there_before_and_who_belongs_to_another_take_none() -> None:
    places = places_of(Place(10.0, 100.5))
    assert places.taken_by("older", "web", created_s=40.0) is None
    assert places.taken_by("foreign", "other", created_s=101.0) is None
    assert places.taken_by("bare", "", created_s=101.0) is None
    assert places.taken_by("same second", "web", created_s=100.0) is not None  # creation times are whole seconds


def test_a_place_is_for_pods_that_are_made_within_an_hour() -> None:
    """A day later, somebody has scaled the owner down and up again."""
    places = places_of(Place(10.0, 100.0), Place(20.0, 500.0))
    assert places.taken_by("next day", "web", created_s=86_400.0) is None
    assert places.taken_by("second", "web", created_s=100.0 + KEPT_S) == Place(20.0, 500.0)
    assert places.taken_by("first", "web", created_s=99.0 + KEPT_S) == Place(10.0, 100.0)


def test_an_heir_may_be_older_than_the_eviction_by_the_difference_of_two_clocks() -> None:
    """It is made at once, and its creation time is that of one of the API servers, in whole seconds."""
    assert places_of(Place(10.0, 105.0)).taken_by("heir", "web", created_s=101.0) is not None
    assert places_of(Place(10.0, 100.0)).taken_by("heir", "web", created_s=40.0) is not None
    assert places_of(Place(10.0, 100.0)).taken_by("older", "web", created_s=39.9) is None


def test_the_oldest_place_that_a_pod_may_take_is_its_own_whenever_it_was_left() -> None:
    places = places_of(Place(1.0, 300.0), Place(2.0, 100.0), Place(3.0, 150.0))
    assert places.taken_by("early", "web", created_s=155.0) == Place(2.0, 100.0)
    assert places.taken_by("late", "web", created_s=300.0) == Place(1.0, 300.0)
    assert places.owners() == {"web"}


def test_it_is_said_when_a_place_is_used_up_or_dropped() -> None:
    said: list[str] = []
    places = places_of(Place(10.0, 100.0))
    places.on_used = lambda: said.append("used")
    places.leave("nobody")
    assert places.taken_by("one", "web", created_s=101.0) is not None
    assert said == []
    places.leave("one")
    assert said == ["used"]
    places.add("web", Place(10.0, 100.0))
    places.drop("web", Place(10.0, 100.0))
    assert said == ["used", "used"]


def test_a_place_is_used_up_by_the_pod_that_leaves_the_queue_and_by_time() -> None:
    places = places_of(Place(10.0, 100.0), Place(20.0, 100.0))
    places.taken_by("one", "web", created_s=101.0)
    places.leave("one")
    assert places.record() == {"web": [[20.0, 100.0]]}
    places.forget_before(100.0 + KEPT_S)
    assert places.record() == {}


def test_an_eviction_that_was_refused_leaves_no_place() -> None:
    places = places_of(Place(10.0, 100.0))
    places.drop("web", Place(10.0, 100.0))
    places.drop("web", Place(10.0, 100.0))
    assert places.record() == {}


def test_the_record_is_bounded_and_keeps_the_newest() -> None:
    places = places_of(*(Place(0.0, float(number)) for number in range(MOST_PLACES + 10)))
    assert len(places.record()["web"]) == MOST_PLACES
    assert [0.0, 0.0] not in places.record()["web"]


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), TIMES, EVICTIONS), max_size=12), st.data())
def test_the_next_leader_has_every_place_that_was_not_used_up(
    added: list[tuple[str, float, float]], data: st.DataObject
) -> None:
    places = ReturnedPlaces()
    for owner, queued_s, evicted_s in added:
        places.add(owner, Place(queued_s, evicted_s))
    takers = data.draw(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["a", "b"]), st.booleans()), max_size=12))
    used = 0
    for number, owner, leaves in takers:
        taken = places.taken_by(f"{owner}-{number}", owner, created_s=1e9 + KEPT_S - 1)
        if taken is not None and leaves:
            places.leave(f"{owner}-{number}")
            used += 1
    following = ReturnedPlaces()
    following.load(places.record())
    assert sum(map(len, following.record().values())) == len(added) - used


def test_a_record_says_how_often_a_place_was_left_and_reads_those_of_earlier_versions() -> None:
    places = places_of(Place(10.0, 100.0), Place(20.0, 100.0, 3))
    assert places.record() == {"web": [[10.0, 100.0], [20.0, 100.0, 3]]}
    again = ReturnedPlaces()
    again.load(places.record())
    assert again.taken_by("one", "web", created_s=101.0) == Place(10.0, 100.0, 1)
    assert again.taken_by("two", "web", created_s=101.0) == Place(20.0, 100.0, 3)
