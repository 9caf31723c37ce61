"""Laws of shelves and their snapshots: they are dicts that know what differs between two moments."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.snapshots import SnapshotMap, SnapshotValues, VersionedMap, changed_keys, removed_and_added

Value = tuple[str, int]
"""Of the key it stands under, and one of its kind: no two values are the same object."""

# Few keys so that places are used again, many so that there is more than one block.
STEPS = st.lists(st.tuples(st.sampled_from([f"k{number}" for number in range(6)]), st.booleans()), max_size=30)
MANY = [f"many{number}" for number in range(150)]


def stepped(shelf: VersionedMap[str, Value], known: dict[str, Value], steps: Sequence[tuple[str, bool]]) -> None:
    """Put a new value under each key, or drop it; the shelf and the dict alike."""
    for number, (key, stays) in enumerate(steps):
        if stays:
            known[key] = (key, number)
            shelf.put(key, known[key])
        elif key in known:
            del known[key]
            shelf.drop(key)


def filled(keys: Sequence[str]) -> tuple[VersionedMap[str, Value], dict[str, Value]]:
    shelf: VersionedMap[str, Value] = VersionedMap()
    known: dict[str, Value] = {}
    stepped(shelf, known, [(key, True) for key in keys])
    return shelf, known


@given(STEPS, STEPS, st.sampled_from([[], MANY]))
def test_snapshots_hold_what_a_dict_held_at_that_moment(
    first: Sequence[tuple[str, bool]], then: Sequence[tuple[str, bool]], before: Sequence[str]
) -> None:
    shelf, known = filled(before)
    stepped(shelf, known, first)
    roster, table, expected = shelf.roster(), shelf.table(), dict(known)
    stepped(shelf, known, then)
    for now_roster, now_table, now in ((roster, table, expected), (shelf.roster(), shelf.table(), known)):
        assert sorted(now_roster) == sorted(now.values())
        assert len(now_roster) == len(now)
        assert now_table == now
        assert all(now_table.get(key) is now.get(key) for key in {*now, *expected, "nobody's"})


@given(STEPS, STEPS, st.sampled_from([[], MANY]))
def test_what_changed_between_two_rosters_is_what_is_in_one_of_them(
    first: Sequence[tuple[str, bool]], then: Sequence[tuple[str, bool]], before: Sequence[str]
) -> None:
    shelf, known = filled(before)
    stepped(shelf, known, first)
    old = shelf.roster()
    stepped(shelf, known, then)
    new = shelf.roster()
    gone, come = removed_and_added(old, new)
    old_ids, new_ids = {id(value) for value in old}, {id(value) for value in new}
    assert {id(value) for value in gone} == old_ids - new_ids
    assert {id(value) for value in come} == new_ids - old_ids
    assert len(gone) + len(come) == len(old_ids ^ new_ids)


@given(st.lists(STEPS, min_size=1, max_size=5), st.sampled_from([[], MANY]), st.data())
def test_any_two_rosters_differ_by_what_is_in_one_of_them(
    rounds: Sequence[Sequence[tuple[str, bool]]], before: Sequence[str], data: st.DataObject
) -> None:
    shelf, known = filled(before)
    rosters = [shelf.roster()]
    for steps in rounds:
        stepped(shelf, known, steps)
        rosters.append(shelf.roster())
    # Numbers are drawn, since Hypothesis keeps weak references to what it draws: see coda.snapshots.
    numbers = st.integers(0, len(rosters) - 1)
    old, new = rosters[data.draw(numbers)], rosters[data.draw(numbers)]
    gone, come = removed_and_added(old, new)
    old_ids, new_ids = {id(value) for value in old}, {id(value) for value in new}
    assert sorted(map(id, gone)) == sorted(old_ids - new_ids)
    assert sorted(map(id, come)) == sorted(new_ids - old_ids)


@given(STEPS, STEPS, st.sampled_from([[], MANY]), st.booleans())
def test_the_keys_that_changed_between_two_tables_are_those_of_two_dicts(
    first: Sequence[tuple[str, bool]], then: Sequence[tuple[str, bool]], before: Sequence[str], only_values: bool
) -> None:
    shelf, known = filled(before)
    stepped(shelf, known, first)
    old, old_known = shelf.table(), dict(known)
    stepped(shelf, known, [step for step in then if not only_values or (step[1] and step[0] in known)])
    keys = changed_keys(old, shelf.table())
    assert sorted(keys) == sorted(key for key in {*old_known, *known} if old_known.get(key) != known.get(key))


def test_a_roster_is_a_sequence() -> None:
    shelf, known = filled(["a", "b", "c"])
    shelf.drop("b")
    roster = shelf.roster()
    assert (roster[0], roster[-1], roster[1:]) == (known["a"], known["c"], (known["c"],))
    assert known["b"] not in roster
    assert isinstance(roster, SnapshotValues)


def test_a_snapshot_shares_with_the_one_before_what_did_not_change() -> None:
    shelf, _ = filled(MANY)
    before = shelf.table()
    shelf.put(MANY[0], ("other", 0))
    after = shelf.table()
    assert isinstance(after, SnapshotMap)
    assert [one is two for one, two in zip(before.blocks, after.blocks, strict=True)] == [False, True, True]


def test_what_is_not_there_cannot_be_dropped() -> None:
    shelf, _ = filled(["a"])
    with pytest.raises(KeyError):
        shelf.drop("b")
    assert list(shelf.roster()) == [("a", 0)]
