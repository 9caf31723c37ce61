"""Throttles that the node refuses: nobody takes them for being in force."""

from __future__ import annotations

from itertools import pairwise

from coda.contention import ContentionConfig
from coda.contention.eliminator import without_refused
from tests.core.contention.contention_world import INTEL, NO_MBA, Load, Node

HOG = Load(uid="hog", gb_per_s=120)


def test_a_refused_trial_is_over_is_repeated_once_soon_and_then_after_a_while() -> None:
    node = Node(loads=(HOG,), hardware=INTEL)
    tried: list[float] = []
    while len(tried) < 4:
        before = len(node.actions)
        node.run(1)
        fresh = tuple(action for _at_s, action in node.actions[before:])
        if not fresh:
            continue
        tried.append(node.now_s)
        node.state, ends = without_refused(node.state, fresh, ContentionConfig())
        assert node.state.throttles == ()
        assert all(one.trial is None for one in node.state.sockets)
        assert [(one.ends, one.socket, one.pods) for one in ends] == [(True, 0, ("hog",))]
        node.limits.clear()
    waits = [after - before for before, after in pairwise(tried)]
    assert 10 <= waits[0] <= 20
    assert 600 <= waits[1] <= 620
    assert 10 <= waits[2] <= 20


def test_the_other_throttles_of_a_trial_go_on() -> None:
    loads = (Load(uid="one", gb_per_s=60), Load(uid="two", gb_per_s=60))
    node = Node(loads=loads, hardware=NO_MBA).run(36)
    assert {throttle.pods for throttle in node.state.throttles} == {("one",), ("two",)}
    refused = tuple(action for _at_s, action in node.actions if action.pods == ("one",))[-1:]
    state, ends = without_refused(node.state, refused, ContentionConfig())
    assert [throttle.pods for throttle in state.throttles] == [("two",)]
    assert [(one.ends, one.pods) for one in ends] == [(True, ("one",))]
    assert any(one.trial for one in state.sockets)


def test_what_was_not_refused_changes_nothing() -> None:
    state = Node(loads=(HOG,)).run(40).state
    assert without_refused(state, (), ContentionConfig()) == (state, ())
