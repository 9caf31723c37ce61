"""The configuration of the policy: one frozen value, passed down.

Each field states its unit, its range and why this default. A value out of range is refused when the object is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from coda.errors import InvalidInput, require
from coda.model.job import LocalityStep
from coda.policy.node_score import TYPICAL_MIX, Mix
from coda.policy.policies import PLAIN, policy_of


class Level(NamedTuple):
    """A topology level: the word that users write in `locality`, and the node label whose values are its domains."""

    name: str
    label: str


class Component(Enum):
    """A part of a policy that an ablation can leave out, to measure what it is worth."""

    ALLOCATOR = "allocator"  # without: jobs keep the cores they asked for
    ARRAYS = "arrays"  # without: all jobs share all capacity
    BORROWING = "borrowing"  # without: each array uses its own cores only
    MIGRATION = "migration"  # without: small jobs stay where they borrow
    ELIMINATOR = "eliminator"  # without: no job is throttled
    TIME_SLICES = "time-slices"  # without: no GPU job is stopped for one that was served less
    FAIR_SHARE = "fair-share"  # without: no gang is stopped for a tenant within its quota
    SHORT_FIRST = "short-first"  # without: jobs that are expected to be short go by arrival as all others


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraysConfig:
    """How nodes are divided between the arrays where no ArrayQuota says. Raises InvalidInput out of range."""

    reserve_cores_per_gpu: float = 4.0
    """Cores of each node that belong to the GPU array, per GPU of the node, 0..1024. Our choice: the average per GPU
    of tuned jobs of the models that CODA names."""

    large_share: float = 0.7
    """Share of all GPUs in the large sub-array, 0..1. Our choice: jobs of four GPUs or more hold 60 % of the GPUs in
    use in the fitted month, and CODA takes the most they ever needed."""

    takes_back: bool = False
    """A CPU job that waits for cores of its array gets those that GPU jobs hold beyond theirs: these shrink in place.
    Default: no. It helps where the CPU array owns cores of every node; elsewhere GPUs pay for nothing
    (`docs/decisions/0085`)."""

    def __post_init__(self) -> None:
        require(0 <= self.reserve_cores_per_gpu <= 1024, "reserve_cores_per_gpu must be 0 to 1024", self)
        require(0 <= self.large_share <= 1, "large_share must be 0 to 1", self.large_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimConfig:
    """How hard borrowers are taken from (`policy.reclaim`). Raises InvalidInput out of range.

    The defaults limit nothing, as CODA says nothing of limits. An installation has limits unless it says otherwise."""

    min_runtime_s: float = 0.0
    """Seconds that a borrower runs at least, >= 0. Twice as long for each time that it, or the pod that it replaces,
    gave its cores back before it had run for `min_runtime_limit_s`. 0: it may be stopped at once, every time."""

    min_runtime_limit_s: float = 600.0
    """The most of these seconds, >= 0: so long at most a GPU job waits for one borrower. Our choice: most CPU jobs of
    the fitted month are shorter, and get done after a few reclaims in a row."""

    evictions_per_minute: int = 0
    """Borrowers that are stopped in any minute, >= 0; 0: any number. The reclaim that crosses it is done as a whole."""

    def __post_init__(self) -> None:
        require(self.min_runtime_s >= 0, "min_runtime_s must not be negative", self.min_runtime_s)
        require(self.min_runtime_limit_s >= 0, "min_runtime_limit_s must not be negative", self.min_runtime_limit_s)
        require(self.evictions_per_minute >= 0, "evictions_per_minute must not be negative", self.evictions_per_minute)


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShareConfig:
    """When gangs on lent GPUs stop for a tenant that is within its quota (`tenants`). Raises InvalidInput out of range.

    Only under a policy in which tenants share first, and only where there are virtual clusters."""

    from_use: float | None = 0.9
    """Share of all GPUs in use from which gangs stop, 0..1; None: none ever stops. Default: Philly, section 2.3."""

    min_runtime_s: float = 600.0
    """Seconds that a gang runs at least before it stops, >= 0. Our choice: a restart costs about a minute, so at most a
    tenth of the time is lost, whoever comes."""

    stops_per_minute: int = 30
    """Gangs that stop in any minute, >= 0; 0: any number. What crosses it is done as a whole. Our choice: what an API
    server and a file system with checkpoints notice."""

    only_resumable: bool = False
    """Only gangs that say they resume stop. Default: no, for whoever runs on lent GPUs gives them back; those that
    resume go first."""

    def __post_init__(self) -> None:
        require(self.from_use is None or 0 <= self.from_use <= 1, "from_use must be 0 to 1", self.from_use)
        require(self.min_runtime_s >= 0, "min_runtime_s must not be negative", self.min_runtime_s)
        require(self.stops_per_minute >= 0, "stops_per_minute must not be negative", self.stops_per_minute)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Everything about the policy that an installation may change. Raises InvalidInput for values out of range."""

    levels: tuple[Level, ...] = (
        Level("rack", "topology.coda.scheduler/rack"),
        Level("node", "kubernetes.io/hostname"),
    )
    """Topology levels, widest first; names unique. Empty: no locality beyond fewest nodes. Default: a rack is the
    usual network domain (Philly, section 2.1), and every kubelet sets the host name label."""

    locality: tuple[LocalityStep, ...] = ()
    """What gangs of several ranks prefer that do not say: levels, each for a while. Default: nothing, see
    `docs/decisions/0100`."""

    spread_cost: float = 0.15
    """The share of its speed that a gang loses outside one domain, 0..1: no gang waits for one longer than this share
    of its expected run time. Default: Philly, Table 3, 98 images/s on two servers, 114.8 on one."""

    bind_deadline_s: float = 60.0
    """Seconds from commit until all ranks must be bound, > 0; more for large gangs. Default: a 512-pod gang binds in
    under 10 s, so a gang misses a minute only if something took the capacity. Pods that bring volumes have ten minutes
    more."""

    bind_deadline_per_rank_s: float = 0.05
    """Seconds more for each rank, >= 0. Default: 20 pods per second, a sixth of what was measured (docs/benchmarks.md).
    So 4096 ranks have 4.4 min, and no gang holds part of its nodes for longer."""

    resize_deadline_s: float = 30.0
    """Seconds from a grant of more cores until every rank must have them, > 0; else all of it is taken back. Default:
    a kubelet takes 1 to 3 s; it may try again what it deferred only every 3 min, in the middle of a measurement."""

    stop_notice_limit_s: float = 120.0
    """The longest notice of a stop, seconds, 0..3600: so long at most a job waits for one that is told to save and end.
    0: no stop is announced. Our choice: most checkpoints are written within it, and it is less than a start takes."""

    refusal_holders: int = 5
    """Jobs named in one refusal, >= 0. Default: as many as a person reads; the largest come first."""

    policy: str = PLAIN
    """One of `policies.POLICIES`. Default: the one that needs nothing but the jobs."""

    mix: Mix = TYPICAL_MIX
    """The workload by which `fgd` judges fragmentation; weights not negative. Default: the month of CODA's text."""

    without: frozenset[Component] = frozenset()
    """Components of the policy that are left out. Default: none."""

    arrays: ArraysConfig = ArraysConfig()
    """How the cluster is divided, if the policy has arrays."""

    reclaim: ReclaimConfig = ReclaimConfig()
    """How long borrowers keep what they borrowed, if the policy has arrays."""

    fair_share: FairShareConfig = FairShareConfig()
    """When gangs on lent GPUs stop for the owners, if tenants share first under the policy."""

    promise_patience_s: float | None = 72 * 3600.0
    """Seconds after which a waiting job that does not fit is promised a start (`promises`), > 0; None: never. Only for
    policies that limit overtaking. Our choice: three days, so that promises are for jobs that the order alone leaves
    behind; after a day, mean waits of an overloaded week grew by an eighth (`docs/decisions/0047`)."""

    promise_price: float = 0.03
    """What a promise may keep idle, 0..1: this share of the job's own GPUs (a CPU job's: cores) times the time it has
    waited. 0: nodes are never kept. Our choice: a job that waited three days may idle its own GPUs for 2 h;
    with 0.1 the jobs of an overloaded Philly month waited a fifth longer."""

    shares_gpus: bool = False
    """Opportunistic jobs get seats on GPUs that others use. Default: no, for nodes must offer seats."""

    auto_wait_s: float = 300.0
    """A job of class Auto that has waited longer is tried on a seat too, seconds, >= 0. Our choice: as `SharingConfig`
    has it of the expected wait, of which the wait so far is the part that is certain."""

    def __post_init__(self) -> None:
        require(self.auto_wait_s >= 0, "auto_wait_s must not be negative", self.auto_wait_s)
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise InvalidInput(f"topology levels must have different names, got {', '.join(names)}")
        if not all(level.name and level.label for level in self.levels):
            raise InvalidInput("a topology level needs a name and a node label")
        require(all(step.for_s > 0 for step in self.locality), "a step of locality must last above 0 s", self.locality)
        unknown = [step.level for step in self.locality if step.level not in names]
        require(not unknown, "locality must name topology levels", ", ".join(unknown))
        require(0 <= self.spread_cost <= 1, "spread_cost must be 0 to 1", self.spread_cost)
        if not self.bind_deadline_s > 0:
            raise InvalidInput(f"bind_deadline_s must be above 0, got {self.bind_deadline_s}")
        if self.bind_deadline_per_rank_s < 0:
            raise InvalidInput(f"bind_deadline_per_rank_s must not be negative, got {self.bind_deadline_per_rank_s}")
        if not self.resize_deadline_s > 0:
            raise InvalidInput(f"resize_deadline_s must be above 0, got {self.resize_deadline_s}")
        patience_s = self.promise_patience_s
        require(patience_s is None or patience_s > 0, "promise_patience_s must be above 0", patience_s)
        require(0 <= self.promise_price <= 1, "promise_price must be 0 to 1", self.promise_price)
        require(
            0 <= self.stop_notice_limit_s <= 3600, "stop_notice_limit_s must be 0 to 3600", self.stop_notice_limit_s
        )
        if self.refusal_holders < 0:
            raise InvalidInput(f"refusal_holders must not be negative, got {self.refusal_holders}")
        policy_of(self.policy)
        require(all(typical.weight >= 0 for typical in self.mix), "weights of a mix must not be negative", self.mix)

    @property
    def has_time_slices(self) -> bool:
        """True if the policy has them, and nothing that they need is left out."""
        return policy_of(self.policy).has_time_slices and Component.TIME_SLICES not in self.without and self._let_in

    @property
    def returns_lent_gpus(self) -> bool:
        """True if gangs may stop for tenants that are within their quota."""
        is_on = self.fair_share.from_use is not None and Component.FAIR_SHARE not in self.without
        return policy_of(self.policy).shares_tenants_first and is_on and self._let_in

    @property
    def _let_in(self) -> bool:
        """True if the arrays let a job in wherever others made room."""
        return Component.ARRAYS in self.without or self.without.isdisjoint((Component.BORROWING, Component.MIGRATION))

    def bind_time_s(self, ranks: int) -> float:
        """Return how long a gang of `ranks` may take from its commit until all of it is bound."""
        return self.bind_deadline_s + ranks * self.bind_deadline_per_rank_s

    def level_index(self, name: str) -> int | None:
        """Return the index of `name` in `levels`; None for a level that this installation does not have."""
        return next((index for index, level in enumerate(self.levels) if level.name == name), None)
