"""The operator's settings: the environment, read once."""

from __future__ import annotations

import socket
from typing import Final, Literal

from pydantic import Field, SecretStr, field_validator

from coda.lifecycle import LifecycleConfig
from coda_kube.objects.names import POOL_TAINTS
from coda_kube.settings import ReplicaSettings, settings_from_environment

LEAST_DAYS: Final = 14
"""For which records of TrainingJobs must be kept: twice what accounts and the division read."""


class Settings(ReplicaSettings):
    """Environment variables `CODA_<FIELD>`; the effective values are logged once at start."""

    identity: str = Field(default_factory=socket.gethostname)  # of this replica, no other's
    metrics_port: int = Field(default=9090, ge=0, le=65535)  # /healthz, /readyz, /metrics; 0 takes a free port
    host: str = "0.0.0.0"  # noqa: S104  a pod serves its probes on every address
    lease_duration_s: float = Field(default=10.0, ge=1)  # another replica takes over after this
    node_loss_s: float = Field(default=60.0, gt=0)  # a node that is not Ready for this long fails its attempts
    failure_backoff_s: float = Field(default=10.0, ge=0)  # first wait after a job's own failure; doubles to 6 min
    finished_ttl_s: float = Field(
        default=604800.0, ge=0
    )  # finished jobs that say nothing are kept so long; 0: for ever
    pool_mode: Literal["tainted", "shared"] = "tainted"  # shared: nodes with GPUs belong to the pool without its taint
    pool_taints: str = POOL_TAINTS
    """Keys of taints that ranks without a GPU of their own tolerate, beside the pool's own; separated by commas."""
    most_cores_per_gpu: float = Field(default=0.0, ge=0)
    """Cores of a rank, sidecars included, for each of its GPUs: a job that asks for more is refused, and `auto` finds
    no more. 0: no limit. Quotas of GPUs count no cores, so jobs of few GPUs could take all cores of a node."""
    certificates: Literal["own", "foreign"] = "own"  # foreign: somebody else makes those of extender and scheduler
    history_url: SecretStr = SecretStr("")
    """postgresql://USER:PASSWORD@HOST/DATABASE for the records of finished jobs. Empty: SQLite in `history_file`."""
    history_url_file: str = ""
    """A file with that URL, which is read again at each connect: a mounted Secret whose password may change. It comes
    before `history_url`."""
    history_ca_file: str = ""
    """Certificates of the authorities that sign PostgreSQL's. `sslmode` is then `verify-full`, unless the URL says
    another. Empty: as the URL says."""
    history_file: str = ""
    """A file of SQLite, on a volume that outlives the pod. Empty, and no URL: no history is kept, and no job waits."""
    history_cpu_days: int = Field(default=90, ge=1, le=3650)  # lines of CPU jobs that ended before are deleted
    history_days: int = Field(default=0, ge=0, le=36500)
    """Records of TrainingJobs that ended so many days ago are deleted. 0: none; else at least 14, since accounts and
    the division between the arrays read a week."""
    failure_rules: str = ""  # a folder of TOML files with rules for failures; empty: only those that come with Coda
    cordon_share: float = Field(default=0.1, ge=0, le=1)  # of the nodes with GPUs, cordoned at once as suspect; 0: none
    cordon_s: float = Field(default=3600.0, gt=0, le=21600)  # after this a suspect node is tried again
    trial_nodes: str = ""
    """Labels of the nodes that are kept for trials, as `label=value`, separated by commas. Empty: any node. Taint them
    with coda.scheduler/trials, which only trials tolerate, to keep other pods away."""
    writes_in_flight: int = Field(default=8, ge=1)  # creates and deletes of pods at the same time

    @field_validator("trial_nodes")
    @classmethod
    def _is_a_selector(cls, value: str) -> str:
        parts = [part.partition("=") for part in value.split(",") if part.strip()]
        if not all(name.strip() and is_given and text.strip() for name, is_given, text in parts):
            raise ValueError("write the labels as label=value, separated by commas")
        return value

    @field_validator("history_days")
    @classmethod
    def _has_what_is_read(cls, value: int) -> int:
        if 0 < value < LEAST_DAYS:
            raise ValueError(f"must be 0 or at least {LEAST_DAYS}")
        return value

    def trial_node_selector(self) -> dict[str, str]:
        """The labels of the nodes that are kept for trials; empty: any node."""
        parts = [part.partition("=") for part in self.trial_nodes.split(",") if part.strip()]
        return {name.strip(): text.strip() for name, _, text in parts}

    def pool_taint_keys(self) -> tuple[str, ...]:
        """The keys of `pool_taints`."""
        return tuple(key for each in self.pool_taints.split(",") if (key := each.strip()))

    def lifecycle(self) -> LifecycleConfig:
        """The life cycle's times."""
        return LifecycleConfig(
            node_loss_s=self.node_loss_s,
            failure_backoff_s=self.failure_backoff_s,
            finished_ttl_s=self.finished_ttl_s,
        )


def read_settings() -> Settings:
    """Return the settings. Raises InvalidInput with one sentence that names every bad variable."""
    return settings_from_environment(Settings)
