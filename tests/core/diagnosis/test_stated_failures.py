"""A line that states a failure of a GPU, a peer or an eviction counts, whatever harmless words it has beside that."""

from __future__ import annotations

import pytest

from coda.diagnosis import Diagnosis, End, RankLog, Reason, Retry, built_in_rules, classify, rules_from_toml

NAMES = ("rank", "GPU", "device", "cuda", "worker", "node", "task", "peer", "replica", "process")
STATED = [
    # what tools print
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.",
    "CUDA error: no CUDA-capable device is detected",
    "terminate called after throwing an instance of 'E'\n  what():  CUDA error: no CUDA-capable device is detected",
    "NCCL error: No route to host",
    "RDMA transport error: no completion from peer",
    "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:0",
    "I0101 10:00:00 1 coordination_service.cc:1] /job:w/replica:0/task:3 has been set to ERROR in coordination "
    "service: UNAVAILABLE: heartbeat timeout: /job:w/replica:0/task:0",
    "NCCL WARN NET/IB : Got completion from peer 10.0.0.1<4> with error 12, opcode 0, len 0, vendor err 129, rank: 0",
    "gpu-0: Test NCCL failure common.cu:1005 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '",
    "node gpu-3 NodeNotReady",
    "GPU 3 requires reset",
    "GPU 0 uncorrectable ECC error",
    # clauses
    "GPU x: fallen off the bus, ECC errors: 0",
    "Lost connection to scheduler; connection failures: 0",
    "GPU is lost | ECC errors: 0",
    "Unable to continue: GPU is lost (persistence mode: off",
    "Unable to go on (ECC errors: 0 on 8) as GPU is lost",
    "Error 802: system not yet initialized. nvidia-fabricmanager: enabled",
    "GPU 5: fallen off the bus (7 of 8 GPUs healthy), aborting",
    "GPU 1 not healthy (uncorrectable ECC)",
    # numbers that are names
    *(f"Lost connection to {name}: 0" for name in NAMES),
    "Lost connection to rank 0",
    "Lost connection to rank=0",
    "CUDA device 0 has uncorrectable ECC errors",
    "uncorrectable ECC errors 0x1f",
    # settings beside a failure
    "GPU is lost: persistence mode is enabled",
    "GPU is lost: ECC must be enabled",
    "GPU reset enabled it again",
    "NCCL watchdog timeout: 600 s exceeded by ALLREDUCE",
    "heartbeat timeout 60 s: worker 3 lost",
    "collective timed out (timeout=1800): NCCL communicator was aborted",
    "Lost connection to peer 3: keepalive deadline of 60 s passed",
    "Rank 3 died on NCCL allreduce: ncclRemoteError",
    "Hang on NCCL broadcast: peer 3 is gone, link is down",
    "training stopped on NCCL error",
    "aborted NCCL communicator after failure on rank 3 nccl allreduce",
    "Spot termination watcher: instance-action terminate received",
    # conditions that were met
    "Received SIGTERM on spot termination; exiting with error",
    "training failed on preemption notice",
    "Exiting on signal SIGTERM",
    "Shutting down on received SIGTERM",
    "checkpoint on preemption: Received SIGTERM",
    "draining node gpu-4, stopping with error",
    # how a line about a GPU may begin, and what followed
    "*** Rank 2 aborting *** reason=uncorrectable ECC error",
    "thread 'main' panicked at src/main.rs:10:5: uncorrectable ECC error encountered",
    'called `Result::unwrap()` on an `Err` value: Cuda("uncorrectable ECC error encountered")',
    "Exception raised from the loader - CUDA error: uncorrectable ECC error encountered",
    "the run is over because of uncorrectable ECC errors",
    "Training stopped: CUDA error: uncorrectable ECC error encountered",
    "health monitor: GPU 5 has fallen off the bus",
    "on Pe 0 (gpu-1 device 0 pci 0:1:0): uncorrectable ECC error encountered",
    "the solver returned code=CUDA_ERROR_ECC_UNCORRECTABLE",
    "the solver of step (cudaErrorECCUncorrectable) is over",
]
RUST = [
    "thread 'main' panicked at src/main.rs:10:5: DriverError(CUDA_ERROR_ECC_UNCORRECTABLE, \"ECC error\")",
    "thread 'main' panicked at src/main.rs:10:5:\ncalled `Result::unwrap()` on an `Err` value: "
    'DriverError(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")',
    "thread 'main' panicked at 'called `Result::unwrap()` on an `Err` value: CUDA_ERROR_ECC_UNCORRECTABLE', s.rs:10",
]
EVICTED = [
    "preempt: error: Preempting, checkpoint save failed",
    *(f"Trainer interrupted: {word} SIGTERM, checkpoint save failed" for word in ("received", "caught", "got")),
    "job was preempted, checkpoint save failed",
    "preempted by the scheduler, checkpoint save failed",
    "CANCELLED DUE TO PREEMPTION, checkpoint save failed",
]
MENTIONED = [
    "GPU 0: uncorrectable ECC v1.2 volatile: 0",
    "GPU 0: ECC errors none on 8 GPUs",
    "GPU 0: ECC failures: 0 (ECC error counters)",
    "Lost connection failures: 0 so far",
    "NCCL error test_a passed",
    "# NCCL error check passed",
    "preemption notice handling enabled",
    *(f"GPU has fallen off the bus: {value}" for value in ("False", "none", "No", "ok", "N/A", "0", "on", "off")),
    "GPU is lost = 'False',",
    "++ grep -c 'NCCL error' (Lost connection)",
    "trap 'echo (Received SIGTERM); kill 0' TERM",
    *(f"GPU check: {word} GPU lost {what} found" for word in ("no", "without") for what in ("error", "failures")),
    "GPU check: no Xid 79 found",
    *(f"GPU check: {word} uncorrectable ECC {what}" for word in ("0", "zero") for what in ("errors", "failures")),
    "spot instance termination watcher at 10.0.0.1",
    "saves a checkpoint if received SIGTERM",
    *(f"checkpoint {word} preemption notice or a termination notice" for word in ("when", "on", "upon")),
    "will restart on NodeLost, and the NCCL communicator is built anew",
    "save if EvictionByEvictionAPI",
    "save if spot interruption",
    "on NCCL error: abort",
    "if you see 'NCCL error', set NCCL_DEBUG=INFO",
    "save if there is a termination notice",
    "fault tolerance: heartbeat timeout 120 s",
    "fault tolerance: heartbeat timeout=120",
    "a1b2c3d fix: handle CUDA_ERROR_LAUNCH_FAILED on A100",
]


def diagnosed(log: str, code: int = 1) -> Diagnosis:
    return classify([RankLog(log=f"loading\n{log}\n".encode(), rank=0)], [End(exit_code=code, rank=0)])


def is_free(found: Diagnosis) -> bool:
    return found.retry is Retry.OTHER_NODE or (found.reason is Reason.PREEMPTED and found.retry is Retry.YES)


@pytest.mark.parametrize("line", STATED)
def test_no_harmless_word_hides_a_failure(line: str) -> None:
    found = diagnosed(line)
    assert is_free(found), (found.reason, found.rule, found.evidence)


@pytest.mark.parametrize("log", RUST)
def test_a_broken_gpu_under_rust_is_no_mistake_of_the_program(log: str) -> None:
    found = diagnosed(log, 101)
    assert (found.reason, found.retry, found.explicit) == (Reason.ECC, Retry.OTHER_NODE, True), found.rule


@pytest.mark.parametrize("line", EVICTED)
def test_an_eviction_that_came_decides_before_what_failed_because_of_it(line: str) -> None:
    assert diagnosed(line).reason is Reason.PREEMPTED, diagnosed(line).rule


@pytest.mark.parametrize("line", MENTIONED)
def test_a_clause_that_says_no_failure_is_none(line: str) -> None:
    found = diagnosed(line)
    assert not is_free(found), (found.reason, found.rule, found.evidence)


def test_a_rule_of_the_site_is_believed_in_any_line() -> None:
    text = '[[rule]]\nid = "site"\nreason = "GPU ECC error"\nweight = 50\nmatch = ["ECC errors"]\n'
    book = built_in_rules().with_rules(rules_from_toml(text, "site.toml"))
    log = b"preflight: uncorrectable ECC errors: 0\n"
    assert classify([RankLog(log=log, rank=0)], [End(exit_code=1, rank=0)], book).rule == "site"
