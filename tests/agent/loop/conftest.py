from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from coda_lab.emulators.cgroups.kubelet import Setup
from coda_lab.emulators.node import EmulatedNode
from coda_lab.emulators.nvml.library import load_here
from coda_lab.emulators.nvml.state import STATE_VARIABLE
from tests.agent.gpus.rig import built_library
from tests.agent.loop.rig import Rig

MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig(needs_gcc: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeRig]:
    """Makes an emulated node of a hardware profile, and the agent on it. One per test: NVML is one per process."""
    load_here(built_library())
    made: list[Rig] = []

    def make(
        profile: str = "intel", version: int = 2, numa_nodes: int = 0, setup: Setup | None = None, **settings: Any
    ) -> Rig:
        node = EmulatedNode(tmp_path, profile=profile, version=version, numa_nodes=numa_nodes, setup=setup)
        monkeypatch.setenv(STATE_VARIABLE, str(node.state.path))
        made.append(Rig(node, tmp_path, **settings))
        return made[-1]

    yield make
    for rig in made:
        rig.kill()
    while True:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return
