"""The emulated NVML for tests: built once, loaded into this process, and one state file per test.

It is loaded here so that no later test meets a missing library. Time stands at NOW until a test moves it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from coda_agent.gpus.samples import Moment
from coda_lab.emulators.nvml import Device, NvmlState
from coda_lab.emulators.nvml.library import build, load_here
from coda_lab.emulators.nvml.state import STATE_VARIABLE
from coda_lab.host.paths import Settings

NOW_US = 1_700_000_000_000_000
NOW = Moment(monotonic_s=5000.0, wall_s=NOW_US / 1e6 + 600, node_wall_s=NOW_US / 1e6)
PERIOD_US = 166_667


@functools.cache
def built_library() -> Path:
    return build(Settings.from_environ().cache)


def gpu(number: int, **facts: object) -> Device:
    return Device(
        uuid=f"GPU-{number:08d}-0000-0000-0000-000000000000",
        minor=number,
        pci_bus_id=f"00000000:{number + 1:02X}:00.0",
        **facts,  # type: ignore[arg-type]  # builders take any field
    )


def later(seconds: float, *, jump_s: float = 0.0) -> Moment:
    """That long after NOW; the node's wall clock set forward by `jump_s` meanwhile."""
    return Moment(
        monotonic_s=NOW.monotonic_s + seconds,
        wall_s=NOW.wall_s + seconds,
        node_wall_s=NOW.node_wall_s + seconds + jump_s,
    )


def advance(state: NvmlState, moment: Moment) -> Moment:
    """Let the driver's clock follow."""
    state.freeze(int(moment.node_wall_s * 1e6))
    return moment


@pytest.fixture
def state(needs_gcc: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlState]:
    """Two idle GPUs that are busy 60 % of the time from a minute ago on; no session is open before or after."""
    load_here(built_library())
    state = NvmlState(path=tmp_path / "nvml")
    monkeypatch.setenv(STATE_VARIABLE, str(state.path))
    with state.batch():
        state.freeze(NOW_US)
        for number in range(2):
            state.add(gpu(number))
            state.set_utilisation(gpu(number).uuid, 0.6, at_us=NOW_US - 60_000_000)
    yield state
    while True:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return
