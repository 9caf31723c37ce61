"""The agent's settings: the environment and a TOML file, read once. The environment wins."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from coda.allocator import CoreSearchConfig, TuningConfig
from coda.contention import ContentionConfig
from coda.errors import InvalidInput
from coda_agent.host import Files
from coda_agent.modes import ThrottleMode, TuneMode
from coda_kube.settings import ProgramSettings, settings_from_environment

FILE_VARIABLE = "CODA_CONFIG"


class Settings(ProgramSettings):
    """Environment variables `CODA_<FIELD>`, or fields of the file that CODA_CONFIG names. Logged once at start."""

    model_config = SettingsConfigDict(extra="forbid")

    node_name: str = Field(default_factory=socket.gethostname)  # as the API server calls this node
    metrics_port: int = Field(default=9092, ge=0, le=65535)  # /healthz, /readyz, /metrics; 0 takes a free port
    host: str = "0.0.0.0"  # noqa: S104  a pod serves its probes on every address
    metrics_access: Literal["open", "authorized"] = "open"  # authorized: whom the API server lets `get` /metrics
    tune: TuneMode = TuneMode.ON  # off, advise or on: what becomes of the cores of jobs with `cpusPerReplica: auto`
    throttle: ThrottleMode = ThrottleMode.ON  # off, observe or on: what becomes of pods that take memory bandwidth
    state_dir: Path = Path("/var/lib/coda")  # journal and measured peaks; must outlive the process, a hostPath
    proc: Path = Path("/proc")  # of the node
    sys: Path = Path("/sys")  # of the node
    cgroup: Path = Path("/sys/fs/cgroup")  # of the node, version 1 or 2
    resctrl: Path = Path("/sys/fs/resctrl")  # of the node; not there: no memory bandwidth is seen or limited
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")  # says whose a GPU is
    pods_dir: Path | None = None  # the kubelet's folder of pods: jobs say there how far they are; None: not
    stop_notices: bool = False  # tell jobs by a file that they are to save and end: `pods_dir` must be writable
    progress_s: float = Field(default=30.0, ge=1)  # between two looks at a job's progress, and so between two writes
    peak_gb_per_s: dict[int, float] = Field(default_factory=dict)  # by socket, as its meter counts; else measured
    calibrate: bool = True  # measure the peak once while the node is idle: all cores for some 15 s
    sharing: bool = False  # offer seats on GPUs; pace and limit the jobs on them, beside the one that the GPU was given
    sharing_socket: Path = Path("/run/coda/agent.sock")  # where jobs connect; a hostPath
    sharing_framework: Path = Path(
        "/var/lib/coda/framework"
    )  # where jobs find their files; a hostPath, same path there
    sharing_bundle: Path = Path("/framework")  # these files in the agent's image, as `make framework` makes them
    sharing_gpu_access: Literal["envvar", "volume-mounts", "cdi-cri"] = "envvar"  # as NVIDIA's device plugin here
    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")  # the kubelet's folder of sockets; writable
    sharing_hold_s: float = Field(default=60.0, gt=0, le=3600)  # how long they keep their pace without the agent
    window_s: float = Field(default=CoreSearchConfig().window_s, gt=0)  # of one tuning measurement
    settle_s: float = Field(default=10.0, ge=0)  # from a finished resize to the window that counts
    contention_window_s: float = Field(default=1.0, gt=0)  # between two looks at bandwidth and utilisation

    @field_validator("peak_gb_per_s")
    @classmethod
    def _positive_peaks(cls, value: dict[int, float]) -> dict[int, float]:
        if not all(0 < peak < 1e6 for peak in value.values()):
            raise ValueError("must be above 0 GB/s for every socket")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment, then the file."""
        file = os.environ.get(FILE_VARIABLE)
        return (
            init_settings,
            env_settings,
            *((TomlConfigSettingsSource(settings_cls, toml_file=file),) if file else ()),
        )

    def files(self) -> Files:
        """Return the kernel's trees."""
        return Files(proc=self.proc, sys=self.sys, cgroup=self.cgroup, resctrl=self.resctrl)

    def tuning_config(self) -> TuningConfig:
        """Return the times of the tuning."""
        return TuningConfig(tuning=CoreSearchConfig(window_s=self.window_s))

    def contention_config(self) -> ContentionConfig:
        """Return the times of the eliminator."""
        return ContentionConfig(window_s=self.contention_window_s)


def read_settings(**given: Any) -> Settings:
    """Return the settings; `given` (from the command line) wins.

    Raises InvalidInput with one sentence that names every bad variable."""
    file = os.environ.get(FILE_VARIABLE)
    if file and not Path(file).is_file():
        raise InvalidInput(f"{FILE_VARIABLE}={file}: there is no such file")
    try:
        return settings_from_environment(Settings, source=f"the environment or {FILE_VARIABLE}", **given)
    except (ValueError, OSError) as error:  # a file that is no TOML
        raise InvalidInput(f"{FILE_VARIABLE}={file}: {error}") from error
