"""The rules of tenants that the checker watches on each level: who is accused, and who is excused."""

from __future__ import annotations

from coda.model import Phase
from coda.model.job import StopCause
from coda_kube.objects.json_types import Json
from coda_lab.checker.objects import JobSeen, PlanSeen
from coda_lab.checker.report import Breach
from coda_lab.checker.tenants import EXCUSED_S, SETTLED_S, TenantWatch

NOW_S = 1000.0


def vc(name: str, gpus: int | None = None, *, parent: str = "", may_borrow: bool = True) -> Json:
    spec: Json = {"namespaces": [name], "quota": {} if gpus is None else {"gpus": gpus}, "mayBorrow": may_borrow}
    return {"metadata": {"name": name}, "spec": spec | ({"parent": parent} if parent else {})}


def watch(*tenants: Json) -> TenantWatch:
    found = TenantWatch()
    for one in tenants:
        found.put(one, 0.0)
    return found


def seen(
    name: str,
    gpus: int = 4,
    *,
    stop: StopCause | None = None,
    by: str = "",
    phase: Phase = Phase.RUNNING,
    plan: str = "p",
    decided_s: float = 0.0,
) -> JobSeen:
    placement = PlanSeen(
        attempt=1, plan_id=plan, generation=1, released=True, nodes=("n",), committed_s=decided_s, bind_deadline_s=0
    )
    return JobSeen(
        uid=name,
        name=name,
        phase=phase,
        attempt=1,
        plan=placement,
        rank_request={"nvidia.com/gpu": gpus * 1000},
        stop_cause=stop,
        stopped_by=by,
    )


def told(found: TenantWatch, *jobs: JobSeen, now_s: float = NOW_S) -> list[str]:
    breaches: list[Breach | None] = [found.see_job(one, now_s, gap=False) for one in jobs]
    breaches += found.settled(now_s + SETTLED_S)
    return [each.sentence for each in breaches if each is not None]


TREE = (vc("org", 8), vc("red", 4, parent="org"), vc("blue", 4, parent="org"), vc("firm", 4))


def test_a_gang_on_lent_gpus_may_be_stopped_for_an_owner() -> None:
    assert (
        told(watch(*TREE), seen("firm/a"), seen("firm/b"), seen("firm/b", stop=StopCause.FAIR_SHARE, by="red/*")) == []
    )


def test_a_start_of_the_same_decision_that_is_seen_later_explains_a_stop() -> None:
    """With it the organisation borrows: both were decided together, and written in any order."""
    running = (seen("blue/a"), seen("blue/b"))
    stopped = seen("blue/a", stop=StopCause.FAIR_SHARE, by="firm/x")
    assert len(told(watch(*TREE), *running, stopped)) == 1
    assert told(watch(*TREE), *running, stopped, seen("red/b", gpus=1)) == []
    assert len(told(watch(*TREE), *running, stopped, seen("firm/b", gpus=1))) == 1
    assert len(told(watch(*TREE), *running, stopped, seen("red/b", gpus=1, decided_s=NOW_S + 0.001))) == 1
    late = watch(*TREE)
    assert told(late, *running, stopped) != []
    assert told(late, seen("red/b", gpus=1)) == [], "a breach that was told stays, and is told once"


def test_a_stop_within_the_own_of_a_level_is_a_breach() -> None:
    stopped = seen("blue/a", stop=StopCause.FAIR_SHARE, by="firm/x")
    said = "job blue/a is stopped for firm/x, but org holds 4 GPUs with it (left lately 4), and owns 8"
    assert told(watch(*TREE), seen("blue/a"), stopped) == [said]
    both = (seen("blue/a"), seen("blue/b"), seen("blue/b", stop=StopCause.FAIR_SHARE, by="red/x"))
    assert told(watch(*TREE), *both) == [], "for a sibling the organisation does not count"
    over = (seen("blue/a"), seen("blue/b"), seen("blue/b", stop=StopCause.FAIR_SHARE, by="firm/x"))
    assert len(told(watch(*TREE), *over)) == 1, "the organisation holds no more than its own"


def test_other_stops_are_no_business_of_it() -> None:
    assert told(watch(*TREE), seen("blue/a"), seen("blue/a", stop=StopCause.PREEMPT, by="blue/x")) == []


def test_a_start_beyond_a_limit_above_is_a_breach() -> None:
    tree = (vc("org", 8, may_borrow=False), vc("red", 4, parent="org"))
    said = "job red/b has a placement, but org holds 12 GPUs with it, and may not hold more than 8"
    assert told(watch(*tree), seen("red/a", 8), seen("red/b")) == [said]
    assert told(watch(*tree), seen("red/a", 8), seen("red/a", 8, phase=Phase.SUCCEEDED), seen("red/b")) == []
    ending = seen("red/a", 8, stop=StopCause.FAIR_SHARE, by="firm/x")
    assert told(watch(*tree), seen("red/a", 8), ending, seen("red/b")) == [], "what is stopped holds nothing"


def test_what_was_held_a_moment_ago_and_a_new_tree_excuse() -> None:
    found = watch(*TREE)
    jobs = (seen("firm/a"), seen("firm/b"), seen("firm/a", phase=Phase.SUCCEEDED))
    assert told(found, *jobs, seen("firm/b", stop=StopCause.FAIR_SHARE, by="red/x")) == []
    later = watch(*TREE)
    assert told(later, *jobs) == []
    stopped = seen("firm/b", stop=StopCause.FAIR_SHARE, by="red/x")
    assert len(told(later, stopped, now_s=NOW_S + EXCUSED_S)) == 1
    fresh = watch(*TREE)
    fresh.put(vc("firm", 8), NOW_S - 1)
    assert told(fresh, seen("firm/a"), stopped) == []
    assert fresh.see_job(seen("firm/c"), NOW_S + 100, gap=True) is None
