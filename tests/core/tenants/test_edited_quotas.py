"""Gangs that an edit of quotas puts beyond their own are spared for the minimum run time, as if they began then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import decide
from coda.model import Decision, WaitCode
from coda.model.world import VirtualCluster
from tests.core.tenants.test_lent_gpus import CODA, NOW_S, full, of, stopped, world_of

OWNER = VirtualCluster(name="speech", gpus=16)
EDITED_S = NOW_S - 100.0


def decided(*tenants: VirtualCluster, now_s: float = NOW_S) -> Decision:
    held = full(of("vision", "old"), of("speech", "s1"))
    return decide(world_of([*held, of("speech", "owner")], 2, (OWNER, *tenants)), CODA, now_s)


@pytest.mark.parametrize(
    "tenants",
    [
        pytest.param([VirtualCluster(name="vision", gpus=4, lost_s=EDITED_S)], id="its quota is smaller"),
        pytest.param([VirtualCluster(name="vision", gpus=0, lost_s=EDITED_S)], id="it is new, or was given the gang"),
        pytest.param(
            [
                VirtualCluster(name="org", gpus=4, lost_s=EDITED_S),
                VirtualCluster(name="vision", gpus=8, parent="org"),
            ],
            id="the quota of its parent is smaller",
        ),
    ],
)
def test_a_gang_runs_on_for_a_while_after_an_edit(tenants: list[VirtualCluster]) -> None:
    plan = decided(*tenants)
    assert (stopped(plan), plan.wake_s) == ([], EDITED_S + 600)
    (refusal,) = plan.refusals
    assert refusal.code is WaitCode.RECLAIM_DELAYED
    assert "not run for the minimum time yet since it began or its VirtualCluster came to own less" in refusal.message
    assert stopped(decided(*tenants, now_s=EDITED_S + 600)) == ["vision/old"]


def test_a_time_far_ahead_spares_nobody() -> None:
    """The clock was set back since."""
    vision = VirtualCluster(name="vision", gpus=4, lost_s=NOW_S + 86_400)
    assert stopped(decided(vision)) == ["vision/old"]
    assert stopped(decided(replace(vision, lost_s=NOW_S + 30))) == []


def test_a_loss_of_the_owner_or_of_others_spares_nobody() -> None:
    tenants = (VirtualCluster(name="vision", gpus=4), VirtualCluster(name="lab", lost_s=EDITED_S))
    held = full(of("vision", "old"), of("speech", "s1"))
    edited = (replace(OWNER, lost_s=EDITED_S), *tenants)
    plan = decide(world_of([*held, of("speech", "owner")], 2, edited), CODA, NOW_S)
    assert stopped(plan) == ["vision/old"]
