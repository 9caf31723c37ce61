"""The extender's settings, read once from the environment into a frozen value. Nothing else reads the environment."""

from __future__ import annotations

import socket
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from coda.errors import InvalidInput
from coda.policy import DEFAULT, ArraysConfig, Level, PolicyConfig, policy_of, why_not_live
from coda_extender.cluster.cluster import GATHER_S
from coda_kube.objects.names import SCHEDULER
from coda_kube.settings import ReplicaSettings, settings_from_environment


class Settings(ReplicaSettings):
    """All that an installation may set, as `CODA_<NAME>`. Times are seconds."""

    model_config = SettingsConfigDict(extra="ignore")

    identity: str = Field(default_factory=socket.gethostname, min_length=1, max_length=200)
    """The holder of the Lease. A random part is added at each start, so that a restart counts as a new holder."""

    host: str = "127.0.0.1"
    """Address to listen on. Default: this machine only, because the protocol has no authentication."""

    port: int = Field(default=8888, ge=0, le=65535)
    """Port to listen on; 0 takes any free one."""

    pod_namespace: str | None = None
    pod_name: str | None = None
    """The extender's own pod, which the leader labels. None: nothing is labelled (no Service in front)."""

    scheduler_names: Annotated[tuple[str, ...], NoDecode] = (SCHEDULER,)
    """Every profile of the kube-scheduler that asks this extender, separated by commas. Right after a fail-over their
    unbound pods count as in flight. In these seconds, pods of a missing profile are not counted; a superfluous one only
    delays starts. Add `default-scheduler` where that profile runs in the same process."""

    topology_levels: Annotated[tuple[Level, ...], NoDecode] = PolicyConfig().levels
    """Topology levels, widest first, as `name=node label` separated by commas."""

    bind_deadline_s: float = Field(default=60.0, gt=0)
    """From the commit of a placement until all ranks must be bound."""

    resize_deadline_s: float = Field(default=30.0, gt=0)
    """From a grant of more cores until every rank of the job must have them; else the whole grant is taken back."""

    scheduling_policy: str = DEFAULT
    """The order of the queue and the choice of nodes: a name of `coda.policy.policies`. Some names run only in the
    simulator: see `why_not_live` there."""

    array_reserve_cores_per_gpu: float = Field(default=ArraysConfig().reserve_cores_per_gpu, ge=0, le=1024)
    """Under a policy with arrays: cores of each node that belong to the GPU array, per GPU of the node."""

    array_large_share: float = Field(default=ArraysConfig().large_share, ge=0, le=1)
    """Under a policy with arrays: part of all GPUs in the sub-array of gangs of four GPUs or more."""

    overtaking_limit_s: float = Field(default=6 * 3600.0, ge=0)
    """After this time in the queue, no other job overtakes a job: nodes are reserved for it (`docs/decisions/0022`).
    0: never. With thousands of nodes and waiting jobs, a cycle that reserves nodes takes twice as long."""

    gather_s: float = Field(default=GATHER_S, ge=0)
    """How long a cycle waits for more changes when none is urgent. 0: not at all."""

    settle_limit_s: float = Field(default=10.0, ge=0)
    """How long a committed placement waits for foreign pods in flight before it is dropped and decided again.
    Default: the time of several binds; a pod that waits longer (for example for a volume) may wait for minutes."""

    in_flight_limit_s: float = Field(default=30.0, gt=0)
    """A foreign pod that passed the filter, with no news since, no longer counts as in flight after this time."""

    takeover_limit_s: float = Field(default=2.0, ge=0)
    """How long unbound pods of `scheduler_names` count as in flight on every node after a fail-over, unless they were
    given up. Default: many times what a bind takes; a leader that died gave its last answer even earlier."""

    writes_at_once: int = Field(default=16, ge=1, le=256)
    """Status writes at the same time."""

    body_limit_bytes: int = Field(default=3 * 1024 * 1024, ge=1024)
    """A larger request is refused unread. Default: more than 5000 node names (66 kB) and 1000 small Node objects."""

    request_limit_s: float = Field(default=5.0, gt=0)
    """After this, a connection is closed that has sent no whole request. Default: several times kube-scheduler's
    `httpTimeout`, after which kube-scheduler gives up itself; keep it above that."""

    @field_validator("scheduler_names", mode="before")
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

    def policy(self) -> PolicyConfig:
        """The configuration of the policy. Raises InvalidInput."""
        return PolicyConfig(
            policy=self.scheduling_policy,
            levels=self.topology_levels,
            bind_deadline_s=self.bind_deadline_s,
            resize_deadline_s=self.resize_deadline_s,
            overtaking_limit_s=self.overtaking_limit_s or None,
            arrays=ArraysConfig(
                reserve_cores_per_gpu=self.array_reserve_cores_per_gpu, large_share=self.array_large_share
            ),
        )


def read_settings() -> Settings:
    """Return the settings from the environment. Raises InvalidInput with one sentence that names every bad variable."""
    settings = settings_from_environment(Settings)
    settings.policy()
    return settings
