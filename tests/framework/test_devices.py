"""Which GPU a device is, where torch is too old to tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coda_lab.programs.gpu_library import python_folder

DRIVER = """
#include <string.h>
int cuDeviceGet(int *handle, int ordinal) { *handle = 100 + ordinal; return 0; }
int cuDeviceGetUuid(char *uuid, int handle) {
  memset(uuid, 0, 16);
  if (handle < 102) uuid[0] = (char)0xC0, uuid[1] = (char)0xDA, uuid[15] = (char)handle;
  return handle == 103;
}
"""
ASK = """
import os, types
from coda_torch.devices import gpu_name

count = int(os.environ["COUNT"])
old = types.SimpleNamespace(get_device_properties=lambda _: object(), device_count=lambda: count)
print(*(gpu_name(types.SimpleNamespace(cuda=old), device) or "none" for device in range(count)))
"""
GPUS = ("GPU-c0da0000-0000-0000-0000-000000000064", "GPU-c0da0000-0000-0000-0000-000000000065")


def named(count: int, **more: str) -> list[str]:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(python_folder()), "COUNT": str(count), **more}
    told = subprocess.run([sys.executable, "-c", ASK], env=environ, capture_output=True, text=True, check=True)
    assert told.stderr == ""
    return told.stdout.split()


def test_the_driver_tells(needs_gcc: None, tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    command = ["gcc", "-shared", "-fPIC", str(tmp_path / "driver.c"), "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(command, check=True)
    found = named(4, LD_LIBRARY_PATH=str(tmp_path), NVIDIA_VISIBLE_DEVICES=GPUS[0])
    assert found == [*GPUS, "none", "none"]


@pytest.mark.parametrize(
    ("count", "visible", "expected"),
    [
        pytest.param(1, GPUS[0], [GPUS[0]], id="it is the container's only one"),
        pytest.param(2, GPUS[0], ["none", "none"], id="it may be either"),
        pytest.param(1, ",".join(GPUS), ["none"], id="the script chose one of two"),
        pytest.param(1, "all", ["none"], id="no name"),
        pytest.param(1, "", ["none"], id="nothing"),
    ],
)
def test_without_the_driver_the_container_may_tell(
    count: int, visible: str, expected: list[str], tmp_path: Path
) -> None:
    """A seat sets the variable, where NVIDIA's toolkit goes by it."""
    (tmp_path / "libcuda.so.1").write_text("no driver")
    assert named(count, LD_LIBRARY_PATH=str(tmp_path), NVIDIA_VISIBLE_DEVICES=visible) == expected
