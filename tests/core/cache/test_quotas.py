from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coda.cache.quotas import QuotaLedger, Shortage
from coda.cycle import decide
from coda.model import Job, Phase, PlacementState, WaitCode
from coda.model.quota_scopes import PodScopes, QuotaScope
from coda.model.world import Quota
from coda.policy import PolicyConfig
from tests.builders import job, node, planned, quota, running, world

GANG = job(replicas=3, quota={"pods": 1000, "cpu": 500})


@pytest.mark.parametrize(
    ("quotas", "others", "expected"),
    [
        pytest.param([], [], None, id="no quota"),
        pytest.param([quota(hard={"pods": 3000})], [], None, id="just enough"),
        pytest.param([quota(hard={"pods": 2000})], [], ("quota", "pods", 3000, 2000), id="enough for some ranks only"),
        pytest.param(
            [quota(used={"pods": 3000}, hard={"pods": 5000})], [], ("quota", "pods", 3000, 2000), id="used counts"
        ),
        pytest.param([quota(namespace="other", hard={"pods": 0})], [], None, id="another namespace's quota"),
        pytest.param([quota(hard={"gpus": 0})], [], None, id="a key the job does not use"),
        pytest.param([quota(hard={"pods": 0, "cpu": 0})], [], ("quota", "cpu", 1500, 0), id="the first key"),
        pytest.param(
            [quota("b", hard={"pods": 0}), quota("a", hard={"pods": 1000})],
            [],
            ("a", "pods", 3000, 1000),
            id="the first quota",
        ),
        pytest.param(
            [quota(hard={"pods": 4000})],
            [planned(job("x", replicas=2, quota={"pods": 1000}), "n", "n")],
            ("quota", "pods", 3000, 2000),
            id="planned ranks without pods count",
        ),
        pytest.param(
            [quota(used={"pods": 1000}, hard={"pods": 4000})],
            [running(job("x", quota={"pods": 1000}), "n")],
            None,
            id="ranks with pods count as used only",
        ),
        pytest.param(
            [quota(hard={"pods": 4000})],
            [planned(job("x", replicas=2, quota={"pods": 1000}), "n", "n", phase=Phase.LAUNCHED)],
            None,
            id="after the launch no pod is to come",
        ),
    ],
)
def test_checks_the_whole_gang(
    quotas: list[Quota], others: list[Job], expected: tuple[str, str, int, int] | None
) -> None:
    found = QuotaLedger(world([node("n")], [*others, GANG], quotas=quotas)).shortage(GANG)
    assert expected == (None if found is None else (found.quota, found.key, found.needed_milli, found.left_milli))


@pytest.mark.parametrize(
    ("quotas", "name", "is_whole"),
    [
        pytest.param([quota("a", hard={"pods": 3000}, used={"pods": 1000})], "a", False, id="others hold a part"),
        pytest.param([quota("a", hard={"pods": 2000})], "a", True, id="all of it is too little"),
        pytest.param(
            [quota("a", hard={"pods": 3000}, used={"pods": 1000}), quota("b", hard={"cpu": 1000})],
            "b",
            True,
            id="one that is too small as a whole goes first",
        ),
    ],
)
def test_a_quota_that_is_too_small_as_a_whole_is_told_apart(quotas: list[Quota], name: str, is_whole: bool) -> None:
    found = QuotaLedger(world([node("n")], [GANG], quotas=quotas)).shortage(GANG)
    assert found is not None
    assert (found.quota, found.is_whole) == (name, is_whole)


HIGH = (QuotaScope(name="PriorityClass", operator="In", values=frozenset({"high"})),)


@pytest.mark.parametrize(
    ("scopes", "pod", "counts"),
    [
        pytest.param(HIGH, PodScopes(priority_class="high"), True, id="its class"),
        pytest.param(HIGH, PodScopes(priority_class="low"), False, id="another class"),
        pytest.param(HIGH, None, False, id="accepted by a version that did not say it"),
        pytest.param((), None, True, id="no scope"),
        pytest.param((*HIGH, QuotaScope(name="Terminating")), PodScopes(priority_class="high"), False, id="one of two"),
    ],
)
def test_a_quota_with_scopes_counts_only_what_they_match(
    scopes: tuple[QuotaScope, ...], pod: PodScopes | None, counts: bool
) -> None:
    gang = replace(GANG, scopes=pod)
    ledger = QuotaLedger(world([node("n")], [gang], quotas=[quota(hard={"pods": 5000, "cpu": 1500}, scopes=scopes)]))
    assert ledger.shortage(gang) is None
    assert (ledger.growth_shortage(gang, 1501) is not None) is counts
    ledger.count_start(gang)
    assert (ledger.shortage(gang) is not None) is counts


def test_jobs_of_two_classes_are_judged_by_their_own_quotas() -> None:
    """They ask for the same, and one of them is held back."""
    jobs = [
        job(f"{name}-{number}", quota={"pods": 1000}, scopes=PodScopes(priority_class=name), queued_s=number)
        for number, name in enumerate(("high", "low", "high"))
    ]
    held = quota(hard={"pods": 1000}, used={"pods": 1000}, scopes=HIGH)
    decision = decide(world([node("n", gpus=8)], jobs, quotas=[held]), PolicyConfig(), now_s=9.0)
    assert [start.job for start in decision.starts] == ["team/low-1"]
    assert {refusal.reason.code for refusal in decision.refusals} == {WaitCode.QUOTA_EXCEEDED}


def test_only_jobs_that_a_quota_counts_are_named_as_its_holders() -> None:
    waits = job("waits", quota={"pods": 1000}, scopes=PodScopes(priority_class="high"))
    others = [
        running(job(name, quota={"pods": 1000}, scopes=PodScopes(priority_class=name)), "n") for name in ("high", "low")
    ]
    full = quota(hard={"pods": 1000}, used={"pods": 1000}, scopes=HIGH)
    decision = decide(world([node("n", gpus=8)], [*others, waits], quotas=[full]), PolicyConfig(), now_s=9.0)
    (refusal,) = decision.refusals
    assert (refusal.reason.code, refusal.reason.holders) == (WaitCode.QUOTA_EXCEEDED, ("team/high",))


def test_starts_of_the_round_count() -> None:
    ledger = QuotaLedger(world([node("n")], [GANG], quotas=[quota(hard={"pods": 5000})]))
    ledger.count_start(GANG)
    short = Shortage(quota="quota", key="pods", needed_milli=3000, left_milli=2000, limit_milli=5000)
    assert ledger.shortage(GANG) == short


@pytest.mark.parametrize(
    "fields", [pytest.param({"bound": frozenset({0})}, id="bound"), pytest.param({"unbound": {0: "n"}}, id="unbound")]
)
def test_pods_that_exist_are_not_counted_twice_while_the_rest_is_created(fields: dict[str, Any]) -> None:
    half = planned(job("x", replicas=2, quota={"pods": 1000}), "n", "n", state=PlacementState.RELEASED)
    jobs = [replace(half, **fields), GANG]
    ledger = QuotaLedger(world([node("n")], jobs, quotas=[quota(hard={"pods": 5000}, used={"pods": 1000})]))
    assert ledger.shortage(GANG) is None
