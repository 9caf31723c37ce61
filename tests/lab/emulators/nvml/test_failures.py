"""What breaks on GPU nodes, as NVML shows it: lost devices, drivers that go and come, files that cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pynvml
import pytest

from coda_lab.emulators.nvml import NvmlState
from coda_lab.emulators.nvml.library import environment_for
from coda_lab.emulators.nvml.state import STATE_VARIABLE
from tests.agent.gpus.rig import built_library, gpu
from tests.lab.emulators.nvml.test_calls import code_of

FIRST, SECOND = gpu(0).uuid, gpu(1).uuid

ASK_TWICE = """
import os, sys, pynvml
def ask():
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return -error.value
print(ask(), flush=True)
sys.stdin.readline()
pynvml.nvmlShutdown()
print(ask(), flush=True)
if sys.stdin.readline() == "exec\\n":
    again = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    os.execv(sys.executable, [sys.executable, "-c", again])
"""


@pytest.fixture
def first(state: NvmlState) -> Any:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByIndex(0)


@pytest.mark.parametrize("code", [15, 16, 999])
def test_a_lost_device_answers_nothing_and_is_still_counted(state: NvmlState, first: Any, code: int) -> None:
    state.lose(FIRST, code)
    assert code_of(pynvml.nvmlDeviceGetUUID, first) == code
    assert code_of(pynvml.nvmlDeviceGetMemoryInfo, first) == code
    assert code_of(pynvml.nvmlDeviceGetHandleByIndex, 0) == code
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(1)) == SECOND
    state.lose(FIRST, 0)
    assert pynvml.nvmlDeviceGetUUID(first) == FIRST


def test_a_removed_device_is_lost_to_its_handle(state: NvmlState, first: Any) -> None:
    state.remove(FIRST)
    assert code_of(pynvml.nvmlDeviceGetUUID, first) == pynvml.NVML_ERROR_GPU_IS_LOST
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)) == SECOND


def test_one_call_may_fail_on_one_device(state: NvmlState, first: Any) -> None:
    state.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_NO_PERMISSION, uuid=FIRST)
    assert code_of(pynvml.nvmlDeviceGetMemoryInfo, first) == pynvml.NVML_ERROR_NO_PERMISSION
    assert pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(1)).total == 80 << 30
    state.fail("nvmlDeviceGetMemoryInfo", 0, uuid=FIRST)
    assert pynvml.nvmlDeviceGetMemoryInfo(first).total == 80 << 30


def test_a_reloaded_driver_breaks_the_open_session_only(state: NvmlState, first: Any) -> None:
    state.reload_driver()
    assert code_of(pynvml.nvmlDeviceGetUUID, first) == pynvml.NVML_ERROR_UNKNOWN
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert code_of(pynvml.nvmlDeviceGetUUID, first) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)) == FIRST


def test_without_a_driver_no_session_opens(state: NvmlState) -> None:
    state.unload_driver()
    assert code_of(pynvml.nvmlInit) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    state.reload_driver()
    pynvml.nvmlInit()


def test_a_call_can_be_slow(state: NvmlState, first: Any) -> None:
    state.delay("nvmlDeviceGetMemoryInfo", 50_000)
    started_s = time.monotonic()
    pynvml.nvmlDeviceGetMemoryInfo(first)
    assert time.monotonic() - started_s >= 0.05


@pytest.mark.parametrize("text", ["", "coda-nvml 1 5\n", "coda-nvml 1 5\nnonsense\nend\n", "\0" * 99], ids=repr)
def test_a_state_file_that_cannot_be_read_is_no_driver(state: NvmlState, text: str) -> None:
    state.path.write_text(text)
    assert code_of(pynvml.nvmlInit) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    state.write()
    pynvml.nvmlInit()


def test_readers_never_see_half_a_change(state: NvmlState, first: Any) -> None:
    """Total and used memory change in one batch; whoever asks meanwhile gets both from before it or from after it."""
    done = threading.Event()
    seen: set[int] = set()

    def change() -> None:
        used = 0
        while not done.is_set():
            used = (used + 1) % 1000
            with state.batch():
                state.device(FIRST).memory_bytes = 2000 + used
                state.device(FIRST).used_bytes = 1000 + used

    writer = threading.Thread(target=change)
    writer.start()
    try:
        while len(seen) < 50:
            memory = pynvml.nvmlDeviceGetMemoryInfo(first)
            assert memory.total - memory.used in {1000, 80 << 30}
            seen.add(memory.used)
    finally:
        done.set()
        writer.join()


def started(library: Path, state: NvmlState) -> subprocess.Popen[str]:
    environ = environment_for(library, state.path, os.environ)
    return subprocess.Popen(
        [sys.executable, "-c", ASK_TWICE], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def told(program: subprocess.Popen[str], line: str) -> None:
    assert program.stdin is not None
    program.stdin.write(line)
    program.stdin.flush()


def heard(program: subprocess.Popen[str]) -> int:
    assert program.stdout is not None
    return int(program.stdout.readline())


def test_another_driver_version_is_a_mismatch_until_the_program_starts_again(state: NvmlState) -> None:
    with started(built_library(), state) as program:
        assert heard(program) == 2
        state.reload_driver("580.10.01")
        told(program, "\n")
        assert heard(program) == -pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        told(program, "exec\n")
        assert heard(program) == 2
    assert program.returncode == 0


def test_a_program_without_a_state_file_finds_no_driver(needs_gcc: None, tmp_path: Path) -> None:
    environ = environment_for(built_library(), tmp_path / "none", os.environ)
    assert environ[STATE_VARIABLE] == str(tmp_path / "none")
    script = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as error: print(error.value)"
    outcome = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert outcome.stdout == "9\n"
