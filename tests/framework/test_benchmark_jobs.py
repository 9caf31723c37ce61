"""The jobs that `benchmarks/real_sharing.py` runs on a real GPU, here over make-believe CUDA."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coda_lab.emulators.cuda import GpuFile, TorchRig
from coda_lab.programs.gpu_library import python_folder
from shared_gpu.node import Boss, memory_of, node


def test_a_job_tells_its_steps_and_obeys(
    torch_rig: TorchRig, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = GpuFile(path=tmp_path / "gpu", gpus=1, kernel_us=100)
    for name, value in torch_rig.environment(gpu, os.environ).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "lib" / "x86_64").mkdir(parents=True)
    (tmp_path / "lib" / "x86_64" / library.name).symlink_to(library)
    (tmp_path / "python").symlink_to(python_folder())
    with node(tmp_path) as here, Boss(here.socket) as orders:
        job = here.start("tiny", pod="o")
        job.wait_until_running()
        told = orders.until(lambda said: said.get("type") == "steps")
        assert memory_of(told)[0] > 0
        assert orders.obeyed(device=2**29) < 10_000
        job.process.terminate()
        ran = job.result()
    assert len(ran.ended_s) >= 5
    assert len(ran.losses) == 1
