"""The extender's settings, read once from the environment into a frozen value. Nothing else reads the environment."""

from __future__ import annotations

import socket
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from coda.errors import InvalidInput
from coda.model.job import LocalityStep
from coda.nodes.locality import locality_from_text
from coda.policy import DEFAULT, ArraysConfig, Level, PolicyConfig, policy_of, why_not_live
from coda.policy.config import FairShareConfig, ReclaimConfig
from coda.policy.priorities import HIGHEST_OF_USERS, PriorityRule
from coda_extender.cluster.cluster import GATHER_S
from coda_kube.api.watch_cache import IDLE_TIMEOUT_S
from coda_kube.objects.names import SCHEDULER
from coda_kube.settings import ReplicaSettings, settings_from_environment


class Settings(ReplicaSettings):
    """All that an installation may set, as `CODA_<NAME>`. Times are seconds."""

    model_config = SettingsConfigDict(extra="ignore")

    identity: str = Field(default_factory=socket.gethostname, min_length=1, max_length=200)
    """The holder of the Lease. A random part is added at each start, so that a restart counts as a new holder."""

    host: str = "127.0.0.1"
    """Address to listen on. Any other than this machine's own needs `tls_dir`."""

    port: int = Field(default=8888, ge=0, le=65535)
    """Port of kube-scheduler's calls; 0 takes any free one."""

    metrics_port: int = Field(default=9091, ge=0, le=65535)
    """Port of /healthz, /readyz and /metrics; 0 takes any free one."""

    tls_dir: str | None = None
    """Folder of tls.crt, tls.key and ca.crt. kube-scheduler's calls are then answered over TLS, and only to a client
    with a certificate of that authority. Renewed files are taken up by themselves. None: any program here may ask."""

    pod_namespace: str | None = None
    """Where `pod_name` is."""

    pod_name: str | None = None
    """The extender's own pod, which the leader labels. None: nothing is labelled (no Service in front)."""

    scheduler_names: Annotated[tuple[str, ...], NoDecode] = (SCHEDULER,)
    """Every profile of the kube-scheduler that asks this extender, separated by commas. Right after a fail-over their
    unbound pods count as in flight. In these seconds, pods of a missing profile are not counted; a superfluous one only
    delays starts. Add `default-scheduler` where that profile runs in the same process."""

    topology_levels: Annotated[tuple[Level, ...], NoDecode] = PolicyConfig().levels
    """Topology levels, widest first, as `name=node label` separated by commas."""

    locality: Annotated[tuple[LocalityStep, ...], NoDecode] = PolicyConfig().locality
    """What gangs prefer that say nothing: levels and for how many seconds, as `rack=300` separated by commas, the
    narrowest first. Empty: the tightest domain that holds them now, without waiting for one."""

    spread_cost: float = Field(default=PolicyConfig().spread_cost, ge=0, le=1)
    """The share of its speed that a gang loses when it is spread: no gang waits longer for a preferred domain than this
    share of its expected run time."""

    bind_deadline_s: float = Field(default=60.0, gt=0)
    """From the commit of a placement until all ranks must be bound; large gangs have more time, and those
    whose pods bring ephemeral volumes ten minutes more (half as much after each attempt in a row that was late)."""

    bind_deadline_per_rank_s: float = Field(default=0.05, ge=0)
    """The additional time for each rank."""

    resize_deadline_s: float = Field(default=30.0, gt=0)
    """From a grant of more cores until every rank of the job must have them; else the whole grant is taken back."""

    scheduling_policy: str = DEFAULT
    """The order of the queue and the choice of nodes: a name of `coda.policy.policies`. Some names run only in the
    simulator: see `why_not_live` there."""

    array_reserve_cores_per_gpu: float = Field(default=ArraysConfig().reserve_cores_per_gpu, ge=0, le=1024)
    """Under a policy with arrays: cores of each node that belong to the GPU array, per GPU of the node."""

    array_large_share: float = Field(default=ArraysConfig().large_share, ge=0, le=1)
    array_takes_back: bool = ArraysConfig().takes_back
    """Under a policy with arrays: tuned GPU jobs shrink when a CPU job waits for its array's cores."""
    """Under a policy with arrays: part of all GPUs in the sub-array of gangs of four GPUs or more."""

    reclaim_min_runtime_s: float = Field(default=10.0, ge=0)
    """A CPU job on borrowed cores runs so long at least before it is evicted for a training job; twice as long after
    each eviction that came soon after its start. 0: it may be evicted at any time. Default: what a start takes."""

    reclaim_min_runtime_limit_s: float = Field(default=ReclaimConfig().min_runtime_limit_s, ge=0)
    """The most that this time grows to: so long at most a training job waits for it."""

    reclaim_evictions_per_minute: int = Field(default=600, ge=0)
    """CPU jobs that are evicted for training jobs in any minute; 0: any number. A training job that needs more at once
    gets all of them, and the next one waits for a minute at most. Default: what controllers of Kubernetes make anew
    without falling behind."""

    fair_share_preemption: bool = True
    """Gangs on lent GPUs stop for tenants within their quota, if the pool is as full as the next setting says."""

    fair_share_from_use: float = Field(default=FairShareConfig().from_use or 0.0, ge=0, le=1)
    """The share of the pool's GPUs in use from which they do. Default: as Philly."""

    fair_share_min_runtime_s: float = Field(default=FairShareConfig().min_runtime_s, ge=0)
    """A gang runs so long at least before it stops for a tenant within its quota. Default: a restart costs about a
    minute, so at most a tenth of the time."""

    fair_share_stops_per_minute: int = Field(default=FairShareConfig().stops_per_minute, ge=0)
    """Gangs that stop for tenants within their quota in any minute; 0: any number. What crosses it is done as a whole,
    and the next job waits for a minute at most."""

    fair_share_only_resumable: bool = FairShareConfig().only_resumable
    """Of the gangs on lent GPUs, only those with `spec.resumable` stop. Otherwise they only go first."""

    promise_patience_s: float = Field(default=PolicyConfig().promise_patience_s or 0.0, ge=0)
    """After this time in the queue a job is promised a start: nodes are kept for it (`docs/decisions/0047`).
    0: never."""

    promise_price: float = Field(default=PolicyConfig().promise_price, ge=0, le=1)
    """What a promise may keep idle: this share of the job's own GPUs times the time it has waited. 0: nothing."""

    sharing: bool = False
    """Opportunistic jobs get seats on GPUs that others use, on nodes whose agents offer seats (docs/gpu-sharing.md)."""

    sharing_auto_wait_s: float = Field(default=PolicyConfig().auto_wait_s, ge=0)
    """With it, a job of class Auto that has waited so long may get a seat instead of GPUs of its own."""

    priority_limit: int = Field(default=HIGHEST_OF_USERS, ge=0)
    """A priority above this counts only in `priority_namespaces`, elsewhere as 0. Default: the `system-` classes of
    Kubernetes do not count, which any user may name."""

    priority_namespaces: Annotated[tuple[str, ...], NoDecode] = ()
    """Namespaces whose jobs may have a priority above `priority_limit`, separated by commas."""

    gather_s: float = Field(default=GATHER_S, ge=0)
    """How long a cycle waits for more changes when none is urgent. 0: not at all."""

    stop_notice_limit_s: float = Field(default=PolicyConfig().stop_notice_limit_s, ge=0, le=3600)
    """The longest notice that a job gets before it is stopped for another, which waits meanwhile. Jobs ask for it with
    `spec.stopNoticeSeconds`. 0: no stop is announced. Default: most checkpoints are written within it."""

    settle_limit_s: float = Field(default=10.0, ge=0)
    """How long a committed placement waits for foreign pods in flight before it is dropped and decided again.
    Default: the time of several binds; a pod that waits longer (for example for a volume) may wait for minutes."""

    in_flight_limit_s: float = Field(default=45.0, ge=IDLE_TIMEOUT_S + 5.0)
    """A foreign pod that passed the filter, with no news since, no longer counts as in flight after this time.
    It outlasts the 35 s after which a watch that died in silence is noticed: the pod may be bound unseen."""

    takeover_limit_s: float = Field(default=2.0, ge=0)
    """How long unbound pods of `scheduler_names` count as in flight on every node after a fail-over, unless they were
    given up. Default: many times what a bind takes; a leader that died gave its last answer even earlier."""

    planner_answer_limit_s: float = Field(default=60.0, ge=1)
    """A planner process without an answer for so long is killed and replaced. Default: hundreds of times what a cycle
    of 5000 nodes takes. After four losses in a row the replica gives up its Lease."""

    planner_memory_bytes: int = Field(default=2 << 30, ge=64 << 20)
    """The most data memory of the planner process; beyond it, the process ends and is replaced. Default: ten times
    what 5000 nodes and 10 000 waiting jobs take. The extender's own process needs about as much in addition."""

    writes_at_once: int = Field(default=16, ge=1, le=256)
    """Status writes at the same time."""

    body_limit_bytes: int = Field(default=3 * 1024 * 1024, ge=1024)
    """A larger request is refused unread. Default: more than 5000 node names (66 kB) and 1000 small Node objects."""

    request_limit_s: float = Field(default=5.0, gt=0)
    """After this, a connection is closed that has sent no whole request. Default: several times kube-scheduler's
    `httpTimeout`, after which kube-scheduler gives up itself; keep it above that."""

    @field_validator("scheduler_names", "priority_namespaces", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @field_validator("topology_levels", mode="before")
    @classmethod
    def _split_levels(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
        if not all(name.strip() and label.strip() for name, _, label in pairs):
            raise ValueError("write levels as name=label, separated by commas")
        return tuple(Level(name.strip(), label.strip()) for name, _, label in pairs)

    @field_validator("locality", mode="before")
    @classmethod
    def _split_steps(cls, value: Any) -> Any:
        try:
            return locality_from_text(value) if isinstance(value, str) else value
        except InvalidInput as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _asks_who_is_there(self) -> Self:
        if self.tls_dir is None and self.host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(f"on {self.host} everybody may ask: set CODA_TLS_DIR, or CODA_HOST to 127.0.0.1")
        return self

    @field_validator("scheduling_policy")
    @classmethod
    def _may_run_live(cls, value: str) -> str:
        try:
            why_not = why_not_live(policy_of(value))
        except InvalidInput as error:
            raise ValueError(str(error)) from None
        if why_not is not None:
            raise ValueError(f"{value!r} {why_not}")
        return value

    def priorities(self) -> PriorityRule:
        """Whose priority counts."""
        return PriorityRule(limit=self.priority_limit, namespaces=frozenset(self.priority_namespaces))

    def policy(self) -> PolicyConfig:
        """The configuration of the policy. Raises InvalidInput."""
        return PolicyConfig(
            policy=self.scheduling_policy,
            levels=self.topology_levels,
            locality=self.locality,
            spread_cost=self.spread_cost,
            bind_deadline_s=self.bind_deadline_s,
            bind_deadline_per_rank_s=self.bind_deadline_per_rank_s,
            resize_deadline_s=self.resize_deadline_s,
            stop_notice_limit_s=self.stop_notice_limit_s,
            promise_patience_s=self.promise_patience_s or None,
            promise_price=self.promise_price,
            shares_gpus=self.sharing,
            auto_wait_s=self.sharing_auto_wait_s,
            arrays=ArraysConfig(
                reserve_cores_per_gpu=self.array_reserve_cores_per_gpu,
                large_share=self.array_large_share,
                takes_back=self.array_takes_back,
            ),
            reclaim=ReclaimConfig(
                min_runtime_s=self.reclaim_min_runtime_s,
                min_runtime_limit_s=self.reclaim_min_runtime_limit_s,
                evictions_per_minute=self.reclaim_evictions_per_minute,
            ),
            fair_share=FairShareConfig(
                from_use=self.fair_share_from_use if self.fair_share_preemption else None,
                min_runtime_s=self.fair_share_min_runtime_s,
                stops_per_minute=self.fair_share_stops_per_minute,
                only_resumable=self.fair_share_only_resumable,
            ),
        )


def read_settings() -> Settings:
    """Return the settings from the environment. Raises InvalidInput with one sentence that names every bad variable."""
    settings = settings_from_environment(Settings)
    settings.policy()
    return settings
