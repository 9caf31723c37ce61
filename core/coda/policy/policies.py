"""The table of policies. Each row names the rules of a policy; the rules themselves are in other modules.

A new policy is a row here, and a new rule only if no other policy has it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coda.errors import InvalidInput
from coda.model.job import Job
from coda.policy.arrays import rank_of_array
from coda.policy.cores import CoresRule
from coda.policy.fair_share import (
    Fairness,
    array_share,
    dominant_share,
    gpu_share,
    one_account,
    quota_share,
    user_of,
    virtual_cluster_of,
)
from coda.policy.node_score import (
    Scorer,
    best_fit,
    dot_product,
    fewest_gpus,
    least_fragmenting,
    least_in_the_way,
    spread_and_balanced,
)
from coda.policy.order import Order, by_arrival, by_attained_service, by_least_left, by_remaining
from coda.policy.preemption_rules import LEAST_SERVED_FIRST, QUOTAS_FIRST, SHORTEST_FIRST, TIME_SLICED, PreemptionRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of one policy.

    order: who goes first, as far as a job alone decides
    favours_short: jobs that are expected to be short go before others that were queued not much earlier
    fairness: the shares that count before the order, if any
    blocks: None: a job that does not fit is skipped; else the queue of a job, and no job overtakes within a queue
    score: the node of a gang of one rank; None: the fullest that fits (fewest free GPUs, then cores, then by name).
        Under every policy, gangs of several ranks go to the fewest nodes, in the tightest domain.
    cores: how many cores training jobs start with
    lends_spare_cores: cores that no job owns are lent to training jobs that gain from them (`cores`)
    profiles_jobs: a profile says what a job can use only after it ran for a while (`cores` AT_BEST)
    preempts: the rule by which running jobs are stopped for jobs that go first; None: none is, for its place alone
    limits_overtaking: a job that has waited too long is promised a start (`promises`); resumable ones stop for it
    reserves_for_first: the first job that does not fit is promised a start at once, at any price (EASY back-filling)
    has_arrays: the cluster is divided between CPU jobs, large and small GPU jobs
    throttles: CPU jobs get less memory bandwidth while they slow a training job (`contention`)"""

    summary: str
    order: Order = by_arrival
    favours_short: bool = False
    fairness: Fairness | None = None
    blocks: Callable[[Job], Hashable] | None = None
    score: Scorer | None = fewest_gpus
    cores: CoresRule = CoresRule.ASKED
    lends_spare_cores: bool = False
    profiles_jobs: bool = False
    preempts: PreemptionRule | None = None
    limits_overtaking: bool = False
    reserves_for_first: bool = False
    has_arrays: bool = False
    throttles: bool = False

    @property
    def counts_quotas(self) -> bool:
        """True if its shares are parts of a tenant's quota."""
        return self.fairness is not None and self.fairness.measure is quota_share

    @property
    def shares_tenants_first(self) -> bool:
        """True if virtual clusters share before anybody else: then gangs on lent GPUs may stop for the owners."""
        return self.fairness is not None and self.fairness.within_tenants

    @property
    def has_time_slices(self) -> bool:
        """True if GPU jobs that were served little go before all others of their priority, and stop them."""
        return self.preempts is TIME_SLICED

    @property
    def may_hold_back(self) -> bool:
        """True if a job may have to wait although it fits."""
        return self.blocks is not None or self.has_arrays


def _one_queue(job: Job) -> Hashable:
    return None


def _queue_by_class(job: Job) -> Hashable:
    return job.request.gpus > 0


DEFAULT: Final = "coda"
"""What an installation gets, and a simulation for which nobody names one."""

PLAIN: Final = "arrival"
"""What a configuration is without a word: it needs nothing but the jobs, and stops some only for one
that has waited for days."""

POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        PLAIN: Policy(
            summary="priority, then arrival, short jobs a bit earlier; skips what does not fit; fills node by node",
            favours_short=True,
            score=None,
            limits_overtaking=True,
        ),
        "fifo-skip": Policy(summary="arrival order over all jobs; skips what does not fit"),
        "fifo-skip-tuned": Policy(
            summary="as fifo-skip, with the cores that coda's allocator finds", cores=CoresRule.TUNED
        ),
        "fifo-skip-easy": Policy(
            summary="as fifo-skip, behind a reservation for the first that does not fit, by coda's estimates (EASY)",
            reserves_for_first=True,
        ),
        "fifo-class": Policy(summary="arrival order, one blocking queue per class", blocks=_queue_by_class),
        "fifo-strict": Policy(summary="arrival order, one blocking queue", blocks=_one_queue),
        "drf": Policy(
            summary="users share GPUs equally, whatever else they hold (CODA's DRF)",
            fairness=Fairness(party=user_of, account=one_account, measure=gpu_share),
        ),
        "drf-multi": Policy(
            summary="users share their dominant resources equally (DRF)",
            fairness=Fairness(party=user_of, account=one_account, measure=dominant_share),
        ),
        "coda": Policy(
            summary="arrays with borrowing and migration, time slices, fair shares inside each; tuned cores",
            favours_short=True,
            fairness=Fairness(party=user_of, account=rank_of_array, measure=array_share, within_tenants=True),
            score=least_in_the_way,
            cores=CoresRule.TUNED,
            preempts=TIME_SLICED,
            limits_overtaking=True,
            has_arrays=True,
            throttles=True,
        ),
        "yarn-cs": Policy(
            summary="the virtual cluster that uses least of its GPU quota, then arrival; unused quota is lent",
            fairness=Fairness(party=virtual_cluster_of, account=one_account, measure=quota_share),
        ),
        "yarn-cs-preempt": Policy(
            summary="as yarn-cs, and jobs of lent quota are stopped for jobs within their own",
            fairness=Fairness(party=virtual_cluster_of, account=one_account, measure=quota_share, guarantees=True),
            preempts=QUOTAS_FIRST,
        ),
        "tiresias-las": Policy(
            summary="GPU jobs below 3600 GPU-seconds of service first, stopping others; arrival within (2D-LAS)",
            order=by_attained_service,
            preempts=LEAST_SERVED_FIRST,
        ),
        "sjf": Policy(summary="shortest remaining run time first, as far as known; stops nobody", order=by_remaining),
        "srtf": Policy(
            summary="shortest remaining run time first, stopping whoever has more left",
            order=by_least_left,
            preempts=SHORTEST_FIRST,
        ),
        "best-fit": Policy(summary="arrival order; the node with least left over", score=best_fit),
        "dot-product": Policy(summary="arrival order; the node whose free room looks most alike", score=dot_product),
        "fgd": Policy(summary="arrival order; the node that fragments least", score=least_fragmenting),
        "proportional": Policy(
            summary="arrival order; cores in proportion to the GPUs of its node", cores=CoresRule.PROPORTIONAL
        ),
        "synergy-tune": Policy(
            summary="arrival order; the cores a job can use, at most in proportion to GPUs; spare ones where they help",
            cores=CoresRule.AT_BEST,
            lends_spare_cores=True,
            profiles_jobs=True,
        ),
        "synergy-tune-oracle": Policy(
            summary="as synergy-tune, but what a job can use is known before it ever ran: a bound",
            cores=CoresRule.AT_BEST,
            lends_spare_cores=True,
        ),
        "k8s-default": Policy(
            summary="priority, then arrival; spreads over nodes, with cores and memory used alike",
            score=spread_and_balanced,
        ),
    }
)


def why_not_live(policy: Policy) -> str | None:
    """Return what a live planner cannot do of this policy, to follow its name in a sentence; None: it can do all."""
    if policy.preempts is not None and not policy.has_time_slices:
        return "stops jobs by how long they ran or by tenant, which the planner does not know: simulate it"
    if policy.cores in (CoresRule.PROPORTIONAL, CoresRule.AT_BEST):
        return "sets the cores of jobs by a rule of its own, which nobody does on a cluster: simulate it"
    return None


def policy_of(name: str) -> Policy:
    """Return the policy of that name. Raises InvalidInput for an unknown name."""
    policy = POLICIES.get(name)
    if policy is None:
        raise InvalidInput(f"{name!r} is no policy: choose one of {', '.join(POLICIES)}")
    return policy
