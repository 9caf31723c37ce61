"""What DRF promises (Ghodsi et al., NSDI 2011, section 3), as far as whole tasks keep it.

The promises are proved for divisible tasks, users who always have more of them waiting and need some of every resource,
and one pool without other users. So here: one node, three users, more tasks than fit. Tasks stay whole: each user may
end one of its tasks short of what it would have if tasks could be cut, or beyond it by as many as fit into what another
could not use; the laws allow for exactly that.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.policy.test_fair_share import Demand, bundle, shared, tasks, useful

RESOURCES = (0, 1)
DEMANDS = st.tuples(st.integers(1, 4), st.integers(1, 4))
USERS = st.fixed_dictionaries({"a": DEMANDS, "b": DEMANDS, "c": DEMANDS})
CAPACITIES = st.tuples(st.integers(40, 70), st.integers(40, 70))
law = settings(max_examples=25, deadline=None)


def got(users: dict[str, Demand], capacity: Demand, weights: dict[str, float] | None = None) -> dict[str, int]:
    counts = shared(
        capacity, [one for user, demand in users.items() for one in tasks(user, demand, 72)], weights=weights
    )
    return {user: counts[user] for user in users}


def task_share(demand: Demand, capacity: Demand) -> Fraction:
    """The dominant share of one task."""
    return max(Fraction(demand[index], capacity[index]) for index in RESOURCES)


def divided(users: dict[str, Demand], capacity: Demand, weights: dict[str, int]) -> dict[str, Fraction]:
    """Tasks of each user if they could be cut: all shares grow together, in the ratio of weights, until something is
    used up."""
    rate = {user: weights.get(user, 1) / task_share(demand, capacity) for user, demand in users.items()}
    used = [sum((rate[user] * demand[index] for user, demand in users.items()), Fraction()) for index in RESOURCES]
    level = min(capacity[index] / used[index] for index in RESOURCES)
    return {user: rate[user] * level for user in users}


def slack(users: dict[str, Demand], user: str) -> int:
    """How many tasks of this user fit into what the largest task of another needs."""
    others = [demand for other, demand in users.items() if other != user]
    own = users[user]
    return max(ceil(Fraction(demand[index], own[index])) for demand in others for index in RESOURCES)


@law
@given(USERS, CAPACITIES, st.sampled_from([{}, {"a": 2}, {"b": 3, "c": 2}]))
def test_everybody_has_what_divisible_tasks_would_give_but_for_whole_tasks(
    users: dict[str, Demand], capacity: Demand, weights: dict[str, int]
) -> None:
    counts = got(users, capacity, {user: float(weight) for user, weight in weights.items()})
    for user, exact in divided(users, capacity, weights).items():
        assert counts[user] >= floor(exact) - slack(users, user)
        assert counts[user] <= exact + slack(users, user)


@law
@given(USERS, CAPACITIES)
def test_nobody_can_have_more_without_another_having_less(users: dict[str, Demand], capacity: Demand) -> None:
    """Pareto efficient, exactly: no task of anybody fits into what is left."""
    counts = got(users, capacity)
    used = [sum(counts[user] * demand[index] for user, demand in users.items()) for index in RESOURCES]
    left = (capacity[0] - used[0], capacity[1] - used[1])
    assert min(left) >= 0
    assert not any(useful(demand, left) for demand in users.values())


@law
@given(USERS, CAPACITIES)
def test_everybody_does_as_well_as_with_a_third_of_the_pool(users: dict[str, Demand], capacity: Demand) -> None:
    """Sharing incentive."""
    counts = got(users, capacity)
    for user, demand in users.items():
        assert counts[user] >= min(capacity[index] // (3 * demand[index]) for index in RESOURCES) - slack(users, user)


@law
@given(USERS, CAPACITIES)
def test_nobody_would_rather_have_what_another_has(users: dict[str, Demand], capacity: Demand) -> None:
    """Free of envy."""
    counts = got(users, capacity)
    for user, demand in users.items():
        for other, others in users.items():
            assert useful(demand, bundle(others, counts[other])) <= counts[user] + slack(users, user)


@law
@given(USERS, CAPACITIES, DEMANDS)
def test_no_other_demand_than_the_true_one_brings_more(users: dict[str, Demand], capacity: Demand, lie: Demand) -> None:
    """Strategy-proof: counted in true tasks that could be made of what the liar gets, asking for more or for less."""
    honest = got(users, capacity)
    lying = got({**users, "a": lie}, capacity)
    made = useful(users["a"], bundle(lie, lying["a"]))
    worth = max(1, useful(users["a"], lie))  # of one task too many, if it is as large as the lie
    assert made <= honest["a"] + max(slack(users, "a"), worth * slack({**users, "a": lie}, "a"))
