"""Which jobs are tried first: what they say themselves, and what their tenants ask for."""

from __future__ import annotations

import pytest

from coda.model.trial_run import TrialOutcome, TrialRun
from coda.tenants.trial_rules import TrialRule, is_tried_first, least_gpus_tried

BEGUN = TrialRun(attempt=1)
OVER = TrialRun(attempt=1, outcome=TrialOutcome.PASSED)


def rule(tenant: str, *namespaces: str, parent: str = "", from_gpus: int = 0, created: str = "2026-01-01") -> TrialRule:
    return TrialRule(tenant, created, parent, namespaces, from_gpus)


def test_a_tenant_asks_for_what_the_one_above_it_asks_for() -> None:
    assert least_gpus_tried(
        (
            rule("younger", "b", created="2026-01-05", from_gpus=99),
            rule("org", from_gpus=16),
            rule("team", "a", parent="org"),
            rule("own", "b", parent="org", from_gpus=4),
            rule("lone", "c"),
            rule("loop", "d", parent="pool"),
            rule("pool", parent="loop"),
            rule("orphan", "e", parent="nobody"),
        )
    ) == {"a": 16, "b": 4}


def test_a_parent_that_counts_for_nothing_says_nothing_of_trials() -> None:
    """Of a loop all stand at the top, and of a branch that is too deep, whoever is one level too deep."""
    loop = (rule("x", "a", parent="y"), rule("y", "b", parent="x", from_gpus=8))
    deep = tuple(rule(f"t{level}", f"n{level}", parent=f"t{level - 1}") for level in range(1, 9))
    assert least_gpus_tried((*loop, rule("t0", from_gpus=4), *deep)) == {"b": 8} | {f"n{n}": 4 for n in range(1, 8)}


@pytest.mark.parametrize(
    ("says", "gpus", "trial", "from_gpus", "expected"),
    [
        pytest.param(True, 1, None, 0, True, id="it asks for one itself"),
        pytest.param(False, 64, BEGUN, 8, False, id="it declines"),
        pytest.param(None, 8, None, 8, True, id="as large as its tenant says"),
        pytest.param(None, 7, None, 8, False, id="smaller"),
        pytest.param(None, 64, None, 0, False, id="a tenant without trials"),
        pytest.param(None, 1, None, 1, False, id="one GPU is its own trial"),
        pytest.param(None, 8, BEGUN, 0, True, id="begun before the tenant changed its mind"),
        pytest.param(None, 8, OVER, 0, False, id="over before that"),
    ],
)
def test_what_a_job_says_counts_before_its_tenant(
    says: bool | None, gpus: int, trial: TrialRun | None, from_gpus: int, expected: bool
) -> None:
    assert is_tried_first(says=says, gpus=gpus, trial=trial, from_gpus=from_gpus) is expected
