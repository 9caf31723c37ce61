"""The operator's settings: the environment, read once."""

from __future__ import annotations

import socket

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from coda.errors import InvalidInput
from coda.lifecycle.state import LifecycleConfig
from coda_kube.api.lease import LeaseTimes


class Settings(BaseSettings):
    """Environment variables `CODA_<FIELD>`; the effective values are logged once at start."""

    model_config = SettingsConfigDict(env_prefix="CODA_", frozen=True)

    kubeconfig: str | None = None  # path; None: the pod's service account, else the user's kubeconfig
    identity: str = Field(default_factory=socket.gethostname)  # of this replica, no other's
    metrics_port: int = Field(default=9090, ge=0, le=65535)  # /healthz, /readyz, /metrics; 0 takes a free port
    host: str = "0.0.0.0"  # noqa: S104  a pod serves its probes on every address
    log_level: str = "INFO"
    lease_duration_s: float = Field(default=10.0, ge=1)  # another replica takes over after this
    lease_renew_deadline_s: float = Field(default=6.0, gt=0)  # no writes this long after the last renewal
    lease_retry_s: float = Field(default=2.0, gt=0)
    node_loss_s: float = Field(default=60.0, gt=0)  # a node not Ready for so long fails its attempts
    failure_backoff_s: float = Field(default=10.0, ge=0)  # first wait after a job's own failure; doubles to 6 min
    writes_in_flight: int = Field(default=32, ge=1)  # creates and deletes of pods at the same time

    @field_validator("log_level")
    @classmethod
    def _known_level(cls, value: str) -> str:
        if value.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError("must be DEBUG, INFO, WARNING or ERROR")
        return value.upper()

    @model_validator(mode="after")
    def _lease_has_a_margin(self) -> Settings:
        if not self.lease_retry_s < self.lease_renew_deadline_s < self.lease_duration_s:
            raise ValueError("lease times must satisfy retry < renew deadline < duration")
        return self

    def lease_times(self) -> LeaseTimes:
        """The Lease's times."""
        return LeaseTimes(
            duration_s=self.lease_duration_s, renew_deadline_s=self.lease_renew_deadline_s, retry_s=self.lease_retry_s
        )

    def lifecycle(self) -> LifecycleConfig:
        """The life cycle's times."""
        return LifecycleConfig(node_loss_s=self.node_loss_s, failure_backoff_s=self.failure_backoff_s)


def read_settings() -> Settings:
    """The settings from the environment. Raises InvalidInput with one sentence that names every bad variable."""
    try:
        return Settings()
    except ValidationError as error:
        faults = "; ".join(
            f"{'_'.join(('CODA', *map(str, fault['loc'][:1]))).upper()}: {fault['msg']}" for fault in error.errors()
        )
        raise InvalidInput(f"bad settings in the environment: {faults}") from error
