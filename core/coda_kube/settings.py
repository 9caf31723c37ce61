"""Settings that every program in a cluster has: environment variables `CODA_<FIELD>`, read once at its start."""

from __future__ import annotations

from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from coda.errors import InvalidInput
from coda_kube.api.lease import LeaseTimes


class ProgramSettings(BaseSettings):
    """What each program has. A subclass adds its own fields."""

    model_config = SettingsConfigDict(env_prefix="CODA_", frozen=True)

    kubeconfig: str | None = None
    """Path of a kubeconfig. None: the pod's service account, else the user's kubeconfig."""

    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""

    @field_validator("log_level")
    @classmethod
    def _known_level(cls, value: str) -> str:
        if value.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError("must be DEBUG, INFO, WARNING or ERROR")
        return value.upper()


class ReplicaSettings(ProgramSettings):
    """What a program has of which one replica leads. Times are seconds."""

    lease_duration_s: float = Field(default=10.0, gt=0)
    """Another replica takes over after this."""

    lease_renew_deadline_s: float = Field(default=6.0, gt=0)
    """Nothing is written this long after the last renewal."""

    lease_retry_s: float = Field(default=2.0, gt=0)
    """Between two renewals, and twice as long as between two looks at another's Lease."""

    metrics_access: Literal["open", "authorized"] = "open"
    """authorized: /metrics is for whom the API server lets `get` that path. open: for everybody."""

    @model_validator(mode="after")
    def _lease_has_a_margin(self) -> Self:
        if not self.lease_retry_s < self.lease_renew_deadline_s < self.lease_duration_s:
            raise ValueError("lease times must satisfy retry < renew deadline < duration")
        return self

    def lease_times(self) -> LeaseTimes:
        """The Lease's times."""
        return LeaseTimes(
            duration_s=self.lease_duration_s, renew_deadline_s=self.lease_renew_deadline_s, retry_s=self.lease_retry_s
        )


ProgramsOwn = TypeVar("ProgramsOwn", bound=ProgramSettings)


def settings_from_environment(kind: type[ProgramsOwn], *, source: str = "the environment", **given: Any) -> ProgramsOwn:
    """Return the settings; `given` (from a command line) win. `source` says where a bad value may come from.

    Raises InvalidInput with one sentence that names every bad variable."""
    try:
        return kind(**given)
    except ValidationError as error:
        faults = "; ".join(
            f"{'_'.join(('CODA', *map(str, fault['loc'][:1]))).upper()}: {fault['msg']}" for fault in error.errors()
        )
        raise InvalidInput(f"bad settings in {source}: {faults}") from error
