"""What a wait is booked as. The reasons are the planner's own, of small worlds; of several shortages one wins."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from coda.cycle import decide
from coda.history.delay_causes import SHORTAGES, DelayCause, cause_in_phase, cause_of_word, delay_cause
from coda.model import Job, Node, Phase, WaitCode
from coda.model.decision import WaitReason
from coda.model.world import Quota, VirtualCluster
from coda.policy import PolicyConfig
from tests.builders import job, node, quota, rack, running, world

OWN, OTHER = VirtualCluster(name="own", gpus=8), VirtualCluster(name="other", gpus=8)
FULL = (node("n1"),)
HELD = running(job("held", gpus=6, cores=6, virtual_cluster="own"), "n1")
SPLIT = (running(job("one", gpus=5), "n1"), running(job("two", gpus=5), "n2"))
TWO = (node("n1"), node("n2"))
RACKS = (*rack("a", 1), *rack("b", 1))
ONE_GPU = {"requests.nvidia.com/gpu": 1000}


def case(
    name: str,
    cause: DelayCause,
    waiting: Job,
    nodes: Iterable[Node] = FULL,
    jobs: Iterable[Job] = (),
    tenants: Iterable[VirtualCluster] = (),
    quotas: Iterable[Quota] = (),
) -> object:
    snapshot = world(nodes, (*jobs, waiting), virtual_clusters=tenants, quotas=quotas)
    return pytest.param(waiting, snapshot, cause, id=name)


@pytest.mark.parametrize(
    ("waiting", "snapshot", "cause"),
    [
        case("too few GPUs in all", DelayCause.CAPACITY, job(gpus=4), jobs=[HELD]),
        case(
            "too few GPUs in all, within its quota",
            DelayCause.CAPACITY,
            job(gpus=4, virtual_cluster="other"),
            jobs=[HELD],
            tenants=[OWN, OTHER],
        ),
        case(
            "the same, over its quota",
            DelayCause.FAIR_SHARE,
            job(gpus=4, virtual_cluster="own"),
            jobs=[HELD],
            tenants=[OWN, OTHER],
        ),
        case("no tenant where there are some", DelayCause.FAIR_SHARE, job(gpus=4), jobs=[HELD], tenants=[OWN, OTHER]),
        case(
            "over the quota of its organisation",
            DelayCause.FAIR_SHARE,
            job(gpus=4, virtual_cluster="mine"),
            jobs=[HELD],
            tenants=[
                VirtualCluster(name="org", gpus=8),
                VirtualCluster(name="own", gpus=8, parent="org"),  # all that it holds is its own
                VirtualCluster(name="mine", gpus=4, parent="org"),
            ],
        ),
        case("GPUs on two nodes", DelayCause.GPUS, job(gpus=6), nodes=TWO, jobs=SPLIT),
        case(
            "GPUs on two nodes, over its quota",
            DelayCause.FAIR_SHARE,
            job(gpus=6, virtual_cluster="own"),
            nodes=TWO,
            jobs=SPLIT,
            tenants=[VirtualCluster(name="own", gpus=4)],
        ),
        case("too few cores", DelayCause.CORES, job(cores=8), jobs=[running(job("cpu", cores=44), "n1")]),
        case("too little memory", DelayCause.MEMORY, job(memory_gib=9), jobs=[running(job("m", memory_gib=380), "n1")]),
        case(
            "GPUs and cores: GPUs win",
            DelayCause.CAPACITY,
            job(gpus=4, cores=8),
            jobs=[running(job("both", gpus=6, cores=44), "n1")],
        ),
        case(
            "cores and memory: cores win",
            DelayCause.CORES,
            job(cores=8, memory_gib=9),
            jobs=[running(job("both", cores=44, memory_gib=380), "n1")],
        ),
        case(
            "enough in two racks",
            DelayCause.LOCALITY,
            job(replicas=2, gpus=4, within="rack"),
            nodes=RACKS,
            jobs=[running(job("one", gpus=4), "a-0"), running(job("two", gpus=4), "b-0")],
        ),
        case(
            "a ResourceQuota wins over a tenant's quota and full nodes",
            DelayCause.QUOTA,
            job(gpus=4, virtual_cluster="own", quota={"requests.nvidia.com/gpu": 4000}),
            jobs=[HELD],
            tenants=[OWN],
            quotas=[quota(hard=ONE_GPU)],
        ),
        case(
            "a tenant that may not borrow",
            DelayCause.FAIR_SHARE,
            job(gpus=2, virtual_cluster="own"),
            jobs=[HELD],
            tenants=[VirtualCluster(name="own", gpus=6, may_borrow=False)],
        ),
        case(
            "what never fits wins over every quota",
            DelayCause.HOLD,
            job(gpus=9, virtual_cluster="own", quota={"requests.nvidia.com/gpu": 9000}),
            tenants=[OWN],
            quotas=[quota(hard=ONE_GPU)],
        ),
        case("no node may be used now", DelayCause.CAPACITY, job(gpus=4), nodes=[node("n1", schedulable=False)]),
        case("no node that it does not avoid", DelayCause.CAPACITY, job(gpus=4, avoid=["n1", "n2"]), nodes=TWO),
        case(
            "no node may be used now, whoever holds what there is",
            DelayCause.CAPACITY,
            job(gpus=4),
            nodes=[node("n1", schedulable=False)],
            jobs=[running(job("held", gpus=8), "n1")],
        ),
        case("a back-off wins over full nodes", DelayCause.RESTART, job(gpus=4, not_before_s=1e9), jobs=[HELD]),
    ],
)
def test_cause(waiting: Job, snapshot: object, cause: DelayCause) -> None:
    decision = decide(snapshot, PolicyConfig(policy="coda"), 0.0)  # type: ignore[arg-type]
    (reason,) = (refusal.reason for refusal in decision.refusals if refusal.job == waiting.id)
    assert delay_cause(reason) is cause, reason


def test_every_code_has_a_cause() -> None:
    own = {code for code in WaitCode if delay_cause(WaitReason(code=code, message="")) is DelayCause.CODA}
    assert own == {
        WaitCode.UNREADABLE,
        WaitCode.UNDECIDABLE,
        WaitCode.JUDGED_IN_TURNS,
        WaitCode.STATUS_UNWRITABLE,
        WaitCode.STATUS_WRITE_SLOW,
        WaitCode.CHANGED_MEANWHILE,
    }


def test_a_quota_that_is_used_up_changes_only_what_nodes_lack() -> None:
    changed = {
        code
        for code in WaitCode
        if delay_cause(WaitReason(code=code, message="", over_quota=True))
        is not delay_cause(WaitReason(code=code, message=""))
    }
    assert changed == {code for code in WaitCode if code.value.startswith("Insufficient")} | {WaitCode.NO_DOMAIN_FITS}


@pytest.mark.parametrize("cause", DelayCause)
def test_a_cause_is_read_as_it_is_written(cause: DelayCause) -> None:
    assert cause_of_word(cause.value) is cause


@pytest.mark.parametrize(
    ("phase", "word", "waits_for_nodes", "cause"),
    [
        (Phase.SUSPENDED, "FairShare", False, DelayCause.HOLD),
        (Phase.RESTARTING, "FairShare", False, DelayCause.RESTART),
        (Phase.QUEUED, "FairShare", False, DelayCause.FAIR_SHARE),
        (Phase.QUEUED, "InsufficientGPUs", False, DelayCause.CAPACITY),  # a planner of an older version
        (Phase.QUEUED, "FairShare", True, DelayCause.DEPENDENCY),
        (Phase.QUEUED, "", False, DelayCause.CODA),
        (Phase.QUEUED, "what nobody wrote", False, DelayCause.CODA),
    ],
)
def test_causes_in_phases(phase: Phase, word: str, waits_for_nodes: bool, cause: DelayCause) -> None:
    assert cause_in_phase(phase, word, waits_for_nodes=waits_for_nodes) is cause


def test_who_is_short_of_nothing_has_no_shortage() -> None:
    assert {cause for cause in DelayCause if cause not in SHORTAGES} == {
        DelayCause.DEPENDENCY,
        DelayCause.HOLD,
        DelayCause.RESTART,
        DelayCause.TRIAL,
        DelayCause.CODA,
        DelayCause.UNSEEN,
    }
