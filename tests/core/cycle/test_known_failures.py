"""What other gang schedulers are known to get wrong, as far as the decision alone is concerned."""

from __future__ import annotations

from coda.cycle import decide
from coda.model import Decision, Job, WaitCode, World
from coda.policy import PolicyConfig
from tests.builders import job, node, quota, start, with_starts, world

CONFIG = PolicyConfig()


def codes(plan: Decision) -> dict[str, WaitCode]:
    return {refusal.job: refusal.code for refusal in plan.refusals}


def committed(snapshot: World) -> tuple[Decision, World]:
    plan = decide(snapshot, CONFIG, now_s=0)
    return plan, with_starts(snapshot, plan.starts, CONFIG, now_s=0)


def test_two_gangs_that_could_block_each_other_do_not_interleave() -> None:
    first, second = job("a", replicas=3, gpus=4), job("b", replicas=3, gpus=4)
    plan, after = committed(world([node("n1"), node("n2")], [second, first]))
    assert plan.starts == (start(first, "n1", "n1", "n2"),)
    assert codes(plan) == {"team/b": WaitCode.INSUFFICIENT_GPUS}
    assert decide(after, CONFIG, now_s=1).starts == ()


def test_nine_waiting_jobs_do_not_starve_a_runnable_one() -> None:
    crowd = [job(f"big-{number}", replicas=2, gpus=8, queued_s=number) for number in range(9)]
    runnable = job("small", queued_s=9)
    plan, _ = committed(world([node("n1"), node("n2", gpus=7), node("n3", schedulable=False)], [*crowd, runnable]))
    assert plan.starts == (start(runnable, "n2"),)
    assert codes(plan) == {f"team/big-{number}": WaitCode.INSUFFICIENT_GPUS for number in range(9)}


def test_a_large_gang_does_not_stop_a_smaller_one_of_the_same_kind() -> None:
    large, small = job("large", replicas=3, gpus=8), job("small", replicas=2, gpus=8, queued_s=1)
    plan, _ = committed(world([node("n1"), node("n2"), node("n3", schedulable=False)], [large, small]))
    assert plan.starts == (start(small, "n1", "n2"),)


def test_an_unschedulable_head_blocks_nobody_behind_it() -> None:
    head = job("head", gpus=100, priority=1000)
    followers: list[Job] = [job(f"job-{number}", gpus=4, queued_s=number) for number in range(3)]
    plan, _ = committed(world([node("n1"), node("n2")], [head, *followers]))
    assert [one.job for one in plan.starts] == ["team/job-0", "team/job-1", "team/job-2"]
    assert codes(plan) == {"team/head": WaitCode.NEVER_FITS}


def test_a_quota_for_one_pod_of_the_gang_starts_none_of_it() -> None:
    gang = job("gang", replicas=4, gpus=1, quota={"gpus": 1000})
    plan, _ = committed(world([node("n1")], [gang], quotas=[quota(hard={"gpus": 1000})]))
    assert plan.starts == ()
    assert codes(plan) == {"team/gang": WaitCode.QUOTA_EXCEEDED}


def test_two_gangs_do_not_share_a_quota_that_only_one_may_use() -> None:
    gangs = [job(name, replicas=2, quota={"pods": 1000}) for name in ("a", "b")]
    plan, after = committed(world([node("n1")], gangs, quotas=[quota(hard={"pods": 3000})]))
    assert [one.job for one in plan.starts] == ["team/a"]
    assert codes(plan) == {"team/b": WaitCode.QUOTA_EXCEEDED}
    assert decide(after, CONFIG, now_s=1).starts == ()
