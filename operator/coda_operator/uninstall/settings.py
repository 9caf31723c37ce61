"""What the administrator chose for the uninstallation: the environment, read once."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coda_kube.settings import ProgramSettings, settings_from_environment


class Settings(ProgramSettings):
    """Environment variables `CODA_<FIELD>`."""

    uninstall_jobs: Literal["keep", "end"] = "keep"
    """keep: running pods go on, TrainingJobs stay as objects. end: all TrainingJobs are deleted first."""

    uninstall_nodes: Literal["clean", "keep"] = "clean"
    """clean: the pool's taint and keys that begin with coda.scheduler/ are taken off the nodes."""

    uninstall_wait_s: float = Field(default=60.0, gt=0)
    """The longest wait for the operator to end jobs, and again for Coda's own pods to end."""


def read_settings() -> Settings:
    """Return the settings. Raises InvalidInput with one sentence that names every bad variable."""
    return settings_from_environment(Settings)
