"""The environment, read once into a frozen value. Nothing else of the extender reads it."""

from __future__ import annotations

import socket
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from coda.errors import InvalidInput
from coda.policy.config import ArraysConfig, Level, PolicyConfig
from coda.policy.policies import DEFAULT, policy_of, why_not_live
from coda_extender.cluster.cluster import GATHER_S
from coda_kube.objects.names import SCHEDULER
from coda_kube.settings import ReplicaSettings, settings_from_environment


class Settings(ReplicaSettings):
    """Everything an installation may set, as `CODA_<NAME>`. Times are seconds."""

    model_config = SettingsConfigDict(extra="ignore")

    identity: str = Field(default_factory=socket.gethostname, min_length=1, max_length=200)
    """Who holds the Lease; a random part is added at each start, so that a restart counts as a new holder."""

    host: str = "127.0.0.1"
    """Address to listen on. Default: this machine only, because the protocol has no authentication."""

    port: int = Field(default=8888, ge=0, le=65535)
    """Port to listen on; 0 takes any free one."""

    pod_namespace: str | None = None
    pod_name: str | None = None
    """The extender's own pod, which the leader labels. None: nothing is labelled (no Service in front)."""

    scheduler_names: Annotated[tuple[str, ...], NoDecode] = (SCHEDULER,)
    """Every profile of the kube-scheduler that asks this extender, comma separated. Right after a fail-over the unbound
    pods of these count as in flight: a profile that is missing here is not protected in these seconds, one too many
    only delays starts. Add `default-scheduler` where that profile runs in the same process."""

    topology_levels: Annotated[tuple[Level, ...], NoDecode] = PolicyConfig().levels
    """Topology levels, widest first, as `name=node label` separated by commas."""

    bind_deadline_s: float = Field(default=60.0, gt=0)
    """From commit until all ranks must be bound."""

    resize_deadline_s: float = Field(default=30.0, gt=0)
    """From a grant of more cores until every rank of the job must have them; else all of it is taken back."""

    scheduling_policy: str = DEFAULT
    """Who goes first, and where to: a name of `coda.policy.policies`. Not all: see `why_not_live` there."""

    array_reserve_cores_per_gpu: float = Field(default=ArraysConfig().reserve_cores_per_gpu, ge=0, le=1024)
    """Under a policy with arrays: cores of each node that belong to the GPU array, per GPU of the node."""

    array_large_share: float = Field(default=ArraysConfig().large_share, ge=0, le=1)
    """Under a policy with arrays: part of all GPUs in the sub-array of gangs of four GPUs or more."""

    overtaking_limit_s: float = Field(default=6 * 3600.0, ge=0)
    """A job that waited so long is overtaken no more: nodes are kept for it (`docs/decisions/0022`); 0: for ever. With
    thousands of nodes and jobs waiting, a round in which nodes are kept takes twice as long."""

    gather_s: float = Field(default=GATHER_S, ge=0)
    """How long a round waits for more news where nobody waits for the first alone. 0: not at all."""

    settle_limit_s: float = Field(default=10.0, ge=0)
    """How long a committed plan waits for foreign pods in flight before it is dropped and made anew elsewhere.
    Default: several binds' worth; a pod that waits longer (for a volume, say) may wait for minutes."""

    in_flight_limit_s: float = Field(default=30.0, gt=0)
    """After this a foreign pod that passed the filter and was never heard of again no longer counts as in flight."""

    takeover_limit_s: float = Field(default=2.0, ge=0)
    """How long after a fail-over the unbound pods of the guarded schedulers that were not given up count as in flight
    everywhere. Default: many times what a bind takes; a leader that died answered its last call longer ago still."""

    writes_at_once: int = Field(default=16, ge=1, le=256)
    """Status writes under way at the same time."""

    body_limit_bytes: int = Field(default=3 * 1024 * 1024, ge=1024)
    """Larger requests are refused unread. Default: above 5000 node names (66 kB) and 1000 small Node objects."""

    request_limit_s: float = Field(default=5.0, gt=0)
    """A request that has not arrived whole after this, and a connection without any, is closed. Default: several
    times kube-scheduler's `httpTimeout`, after which it has given up itself; keep it above that."""

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
    def _knows_what_it_needs(cls, value: str) -> str:
        try:
            why_not = why_not_live(policy_of(value))
        except InvalidInput as error:
            raise ValueError(str(error)) from None
        if why_not is not None:
            raise ValueError(f"{value!r} {why_not}")
        return value

    def policy(self) -> PolicyConfig:
        """The policy's configuration. Raises InvalidInput."""
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
    """The settings from the environment. Raises InvalidInput with one sentence that names every bad variable."""
    settings = settings_from_environment(Settings)
    settings.policy()
    return settings
