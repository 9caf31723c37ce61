from collections.abc import Iterator
from pathlib import Path

import pytest

from coda_lab.emulators.cuda import TORCH_VERSIONS, GpuFile, TorchRig, find_torch
from coda_lab.host.paths import Settings
from coda_lab.programs.gpu_library import ensure
from tests.framework.shared_node import SharedNode
from tests.lengths import LONG
from tests.rigs import need
from tests.rigs import needs_gcc as needs_gcc


@pytest.fixture(scope="session")
def library() -> Path:
    """libcodagpu.so as users get it."""
    return ensure(Settings.from_environ())


@pytest.fixture(scope="session", params=list(TORCH_VERSIONS) if LONG else list(TORCH_VERSIONS)[:1])
def torch_rig(request: pytest.FixtureRequest, needs_gcc: None) -> TorchRig:
    """A real torch over make-believe CUDA: the newest, with CODA_LONG=1 all."""
    found = find_torch(Settings.from_environ(), request.param)
    need(found is not None, f"torch {request.param} (make torch)")
    assert found is not None
    return found


@pytest.fixture
def node(torch_rig: TorchRig, library: Path, tmp_path: Path) -> Iterator[SharedNode]:
    """Two fast GPUs of 1 GiB. `gpus` may be replaced before the first job."""
    gpus = GpuFile(path=tmp_path / "gpu", gpus=2, kernel_us=100)
    made = SharedNode(rig=torch_rig, gpus=gpus, library=library, socket=tmp_path / "agent.sock")
    yield made
    made.end()
