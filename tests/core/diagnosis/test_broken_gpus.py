"""A GPU that cannot be used is not the program's fault, in whatever words the program's libraries say so."""

from __future__ import annotations

import pytest

from coda.diagnosis import Diagnosis, End, RankLog, Reason, Retry, classify
from coda.diagnosis.classifier import beside_others

UNKNOWN = (
    "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env "
    "variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero."
)
NOT_READY = (
    "/opt/torch/cuda/__init__.py:174: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). "
    "Error 802: system not yet initialized (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:109.)\n"
)
LIGHTNING = (
    "lightning.fabric.utilities.exceptions.MisconfigurationException: CUDAAccelerator can not run on your system since "
    "the accelerator is not available."
)
TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\n    main()\n'
HELD = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 11.00 MiB is free. Process 3412 has 78.60 GiB memory in use. Of the allocated memory {} is allocated by P"
)
HELD_BEFORE = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 79.11 GiB total capacity; 0 bytes already "
    "allocated; 1.50 MiB free; 0 bytes reserved in total by PyTorch)"
)
TOO_LARGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 78.60 GiB is free. {} Of the allocated memory 0 bytes is allocated by PyTorch"
)
TOO_LARGE_BEFORE = (
    "RuntimeError: CUDA out of memory. Tried to allocate 96.00 GiB (GPU 0; {} GiB total capacity; 0 bytes already "
    "allocated; {} free; 0 bytes reserved in total by PyTorch)"
)
SET_DEVICE = f"{TRACEBACK[:-11]}    torch.cuda.set_device(0)\ntorch.AcceleratorError: CUDA error: out of memory\n"
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
WATCHDOG = "[rank5]:[E412 ProcessGroupNCCL.cpp:629] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL()"
PYTHON_ABORTED = "Fatal Python error: Aborted\n\nThread 0x00007f1 (most recent call first):\n  <no Python frame>\n"
HUNG = (
    "[rank3]:[F412 ProcessGroupNCCL.cpp:1557] [Rank 3] Terminating the process after attempting to dump debug info, "
    "due to ProcessGroupNCCL watchdog hang."
)


def diagnosed(log: str, code: int = 1) -> Diagnosis:
    return classify([RankLog(log=log.encode(), rank=0)], [End(exit_code=code, rank=0)])


@pytest.mark.parametrize("before", ["", TRACEBACK], ids=["alone", "traceback"])
@pytest.mark.parametrize("line", [UNKNOWN, f"{LIGHTNING}"])
def test_a_gpu_that_cannot_be_opened_is_not_misuse(line: str, before: str) -> None:
    found = diagnosed(f"{NOT_READY}{before}{line}\n")
    assert (found.reason, found.retry) == (Reason.CUDA_INIT, Retry.OTHER_NODE), found.rule


@pytest.mark.parametrize("log", [SET_DEVICE, TRACEBACK + HELD.format("0 bytes"), HELD.format("0 bytes"), HELD_BEFORE])
def test_gpu_memory_that_others_hold_before_the_first_tensor_is_the_nodes(log: str) -> None:
    found = diagnosed(log)
    assert (found.reason, found.retry) == (Reason.GPU_MEMORY, Retry.OTHER_NODE), found.rule


def test_memory_that_jobs_beside_it_may_hold_is_not_the_nodes_fault() -> None:
    found = beside_others(diagnosed(SET_DEVICE), on_seats=False)
    assert (found.retry, found.advice[:18]) == (Retry.YES, "opportunistic jobs")


def test_gpu_memory_that_the_program_uses_is_its_own() -> None:
    assert diagnosed(HELD.format("70.20 GiB")).retry is Retry.NO
    assert diagnosed(f"{TRACEBACK}RuntimeError: CUDA error: out of memory\n").retry is Retry.NO


@pytest.mark.parametrize(
    "line",
    [
        TOO_LARGE.format("Including non-PyTorch memory, this process has 510.00 MiB memory in use."),
        TOO_LARGE.format("Including non-PyTorch memory, this process has 1.10 GiB memory in use."),
        TOO_LARGE.format("Process 4211 has 510.00 MiB memory in use."),
        TOO_LARGE.format("Process 4211 has 0.60 GiB memory in use."),
        TOO_LARGE_BEFORE.format("79.15", "78.60 GiB"),
        TOO_LARGE_BEFORE.format("9.50", "9.10 GiB"),
    ],
)
def test_a_first_allocation_that_is_larger_than_the_gpu_is_the_programs(line: str) -> None:
    found = diagnosed(TRACEBACK + line)
    assert (found.reason, found.retry, found.sub_reason) == (Reason.GPU_MEMORY, Retry.NO, ""), found.rule


@pytest.mark.parametrize("free", ["1.50 GiB", "11.00 MiB", "512.00 KiB", "0 bytes"])
def test_a_gpu_that_is_full_before_the_first_allocation_is_the_nodes(free: str) -> None:
    assert diagnosed(TOO_LARGE_BEFORE.format("79.15", free)).retry is Retry.OTHER_NODE


@pytest.mark.parametrize(
    "before", [WATCHDOG, "transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error"]
)
def test_an_abort_that_faulthandler_reports_hides_no_peer(before: str) -> None:
    found = diagnosed(f"{before}\nterminate called after throwing an instance of 'E'\n{PYTHON_ABORTED}", 134)
    assert found.reason is Reason.MPI_RUNTIME, found.rule


def test_an_abort_alone_is_a_core_dump_and_so_is_another_fatal_error() -> None:
    assert diagnosed(PYTHON_ABORTED, 134).reason is Reason.CORE_DUMP
    assert diagnosed("Fatal Python error: Segmentation fault\n", 139).explicit
    assert diagnosed("Fatal Python error: init_fs_encoding: failed to get the codec\n", 1).reason is Reason.CORE_DUMP


def test_what_was_raised_in_a_worker_is_the_cause_not_that_it_was_caught() -> None:
    caught = "torch.AcceleratorError: Caught AcceleratorError in pin memory thread for device 0.\n"
    original = f"Original {TRACEBACK}{ECC}\n"
    assert diagnosed(TRACEBACK + caught + original).reason is Reason.ECC


def test_a_watchdog_that_hangs_is_a_peers_failure() -> None:
    assert diagnosed(HUNG, 134).reason is Reason.MPI_RUNTIME


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param("".join(f"VAR_{'abcdefgh'[i % 8]}{i}=/opt/x\n" for i in range(260)), id="environment"),
        pytest.param("".join(f"step {i} loss 2.{i}\n" for i in range(12)), id="progress of others"),
    ],
)
def test_no_program_survives_broken_gpu_memory(rest: str) -> None:
    found = diagnosed(f"{ECC}\n--- diagnostics ---\n{rest}")
    assert (found.reason, found.retry, found.explicit) == (Reason.ECC, Retry.OTHER_NODE, True)
    assert diagnosed(f"{ECC}\n{rest}{TRACEBACK}KeyError: 'a'\n").reason is Reason.SEMANTIC
    assert diagnosed(f"{ECC}\n{rest}", 0).reason is Reason.NO_SIGNATURE
