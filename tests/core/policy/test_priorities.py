"""Whose priority counts."""

import pytest

from coda.policy.priorities import PriorityRule

SYSTEM = 2_000_001_000


@pytest.mark.parametrize(
    ("rule", "namespace", "asked", "counts"),
    [
        pytest.param(PriorityRule(), "team", 1000, 1000, id="a class of the cluster's own"),
        pytest.param(PriorityRule(), "team", SYSTEM, 0, id="a system class"),
        pytest.param(PriorityRule(), "team", -5, -5, id="below none"),
        pytest.param(PriorityRule(namespaces=frozenset({"ops"})), "ops", SYSTEM, SYSTEM, id="allowed there"),
        pytest.param(PriorityRule(namespaces=frozenset({"ops"})), "team", SYSTEM, 0, id="not allowed here"),
        pytest.param(PriorityRule(limit=100), "team", 101, 0, id="above a limit of the installation"),
    ],
)
def test_a_high_priority_counts_only_where_it_is_allowed(
    rule: PriorityRule, namespace: str, asked: int, counts: int
) -> None:
    assert rule.priority(namespace, asked) == counts
