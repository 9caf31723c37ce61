"""Words for a broken GPU, an eviction or a lost peer prove one only if a line says that it happened.

What follows from them is free for the job and blames its node: reports of healthy GPUs, settings and quoted texts must
not cause that."""

from __future__ import annotations

import pytest

from coda.diagnosis import Diagnosis, End, RankLog, Reason, Retry, classify

REPORT = """==============NVSMI LOG==============
Attached GPUs                             : 1
GPU 00000000:18:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    ECC Errors
        Volatile
            SRAM Uncorrectable Parity     : 0
            DRAM Uncorrectable            : 0
    Retired Pages
        Double Bit ECC                    : N/A
    Remapped Rows
        Uncorrectable Error               : 0
        Remapping Failure Occurred        : No
"""
"""A part of what `nvidia-smi -q` says of a healthy GPU."""
TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
MISSING = f"{TRACEBACK}ModuleNotFoundError: No module named 'a'\n"
ENDS = {
    "a missing module": (MISSING, 1, (), Reason.IMPORT),
    "GPU memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
        1,
        (),
        Reason.GPU_MEMORY,
    ),
    "an argument": ("t.py: error: unrecognized arguments: --lr 1\n", 2, (), Reason.SEMANTIC),
    "memory, says Kubernetes": ("", 137, ("OOMKilled",), Reason.CPU_MEMORY),
    "a kill": ("", 137, (), Reason.CPU_MEMORY),
    "a crash": ("", 139, (), Reason.CORE_DUMP),
    "an end from outside": ("", 143, (), Reason.PREEMPTED),
    "nothing known": ("", 1, (), Reason.NO_SIGNATURE),
}
MENTIONS = [
    "preflight: uncorrectable ECC errors: 0 on 8 GPUs",
    "health: no ECC error found, no Xid 79 found",
    "health check: GPU has fallen off the bus: False",
    "[test] simulated 'uncorrectable ECC error' handled",
    "[test] nccl error injection test passed",
    "# nccl error check passed",
    "sample 17: 'The GPU has fallen off the bus'",
    "<|assistant|> RuntimeError: CUDA error: uncorrectable ECC error encountered means that the GPU is broken.",
    "preemption: checkpoint on preemption notice enabled",
    "spot instance termination watcher started",
    "max_restarts=3, monitor_interval=5, will restart on NodeLost",
    "    GPU Reset Status",
    "NVLink Replay Errors: 0",
    "alerts: ECCUncorrectable -> page, Xid 79 -> drain",
    "* 2.3: fixed 'GPU is lost' when MIG is enabled",
    "+ trap cleanup SIGTERM SIGHUP",
    "trap 'echo Received SIGTERM; kill 0' TERM",
    "  --requeue    put the job back in the queue if it was preempted by a higher one",
    "[info] elastic: on worker failure the group restarts up to 3 times (node lost, NCCL error)",
    "fault tolerance: heartbeat timeout 120 s",
    "gloo/transport: using eth0",
    "Draining the data queue before the next epoch",
    "Registered handler: will save a checkpoint when SIGTERM is received",
]
HAPPENED = [
    ("terminate called\n  what():  CUDA error: uncorrectable ECC error encountered", 134, Reason.ECC),
    ("CUDA error: uncorrectable ECC error encountered", 1, Reason.ECC),
    ("allreduce: Test CUDA failure common.cu:1002 'uncorrectable ECC error encountered'", 1, Reason.ECC),
    ("[812.1] NVRM: Xid (PCI:0000:86:00): 48, pid=7, name=python, Double Bit ECC Error", 1, Reason.ECC),
    ("Unable to determine the device handle for GPU 0000:86:00.0: GPU is lost.", 1, Reason.CUDA),
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9, Reason.CUDA_INIT),
    ("Failed to initialize NVML: Driver/library version mismatch", 1, Reason.CUDA_INIT),
    ("[rank: 0] Received SIGTERM: 15", 1, Reason.PREEMPTED),
    (
        "slurmstepd: error: *** JOB 8812 ON n3 CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION ***",
        1,
        Reason.PREEMPTED,
    ),
    ("Spot instance interruption notice received: 2 minutes left", 1, Reason.PREEMPTED),
    ("ncclRemoteError: A call failed possibly due to a network error", 1, Reason.MPI_RUNTIME),
]


def diagnosed(log: str, code: int, said: tuple[str, ...] = ()) -> Diagnosis:
    return classify([RankLog(log=log.encode(), rank=0)], [End(exit_code=code, said=said, rank=0)])


@pytest.mark.parametrize(("ending", "code", "said", "reason"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("before", [REPORT, *(f"{line}\n" for line in MENTIONS)])
def test_a_mention_is_not_the_cause(before: str, ending: str, code: int, said: tuple[str, ...], reason: Reason) -> None:
    found = diagnosed(f"loading\n{before}loaded\n{ending}", code, said)
    known = (reason, Reason.TRACEBACK) if reason is Reason.NO_SIGNATURE else (reason,)
    assert found.reason in known, (found.rule, found.evidence)
    assert found.retry is not Retry.OTHER_NODE


def test_a_gpu_that_is_not_there_decides_before_no_crash_unless_it_is_an_error() -> None:
    line = "torch.cuda.is_available() returned False in the launcher, as expected"
    assert diagnosed(f"{line}\nstarting\nSegmentation fault (core dumped)\n", 139).reason is Reason.CORE_DUMP
    assert diagnosed(f"AssertionError: {line}\n", 1).reason is Reason.CUDA_INIT


def test_an_eviction_that_a_line_names_beside_an_error_hides_no_exception() -> None:
    assert (
        diagnosed(f"classes: 0=normal 3=ECC error 4=preempted\n{TRACEBACK}KeyError: 'lr'\n", 1).reason
        is Reason.SEMANTIC
    )


def test_a_report_after_the_failure_is_not_the_cause() -> None:
    """A trap of the shell prints it: it stands where the message of an exception may still go on."""
    assert diagnosed(MISSING + REPORT, 1).reason is Reason.IMPORT


@pytest.mark.parametrize(("line", "code", "reason"), HAPPENED)
def test_a_line_that_says_that_it_happened_is_the_cause(line: str, code: int, reason: Reason) -> None:
    assert diagnosed(f"loading\n{line}\n", code).reason is reason
