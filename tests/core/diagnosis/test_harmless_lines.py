"""What a program says and goes on is not why it ended, whatever it ends of, and never for sure."""

from __future__ import annotations

import pytest

from coda.diagnosis import Diagnosis, End, RankLog, Reason, classify

TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "t.py", line 9, in <module>\n    main()\n  File "t.py", line 5, in main\n    run(x)\n'
)
HARMLESS = [
    "sh: 1: nvidia-smi: not found",
    "/bin/sh: 1: lspci: not found",
    "sh: ibv_devinfo: not found",
    "/bin/sh: nvcc: command not found",
    "bash: module: command not found",
    "job.sh: line 3: nvidia-smi: command not found",
    "WARNING: gradients are not finite, skipping step",
    "WARNING: gradient norm of layer 3 is inf",
    "ERROR: gradients are not finite, skipping step 7",
    "Loss is nan, skipping this batch",
    "Found inf: output of layer norm is inf in 0 of 100 batches",
    "INFO: attention mask weights are inf where padded",
    "INFO best validation loss is inf",
    "2026-03-02 10:11:12,345 - INFO - initial best loss is infinite",
    "INFO: unknown option foo ignored",
    "WARNING: unknown option --foo ignored",
    "Unknown command line flag xla_gpu_x ignored",
    "mlx5_0 device: out of memory registering MR",
    "INFO: device map auto to avoid out of GPU memory",
    "WARNING: out of GPU memory while benchmarking, trying a smaller workspace",
    "ERROR ignored: image 0003.png has no alpha channel",
    "error: shard 3 contains no padding",
    "WARN: label map has no entry 'background', using the default",
    "WARNING: image 7.jpg is corrupt",
    "ERROR: image 7.jpg is truncated, skipped",
    "ERROR: cannot load library libsox.so: torchaudio backend sox disabled",
    "WARNING: cannot load library libibverbs.so, falling back to sockets",
    "WARNING: libnuma.so.1: cannot open shared object file: No such file or directory",
    "ERROR: flash_attn is not installed, using the default attention",
    "ERROR: checkpoint /out/last.pt does not exist, continuing from step 0",
    "error: No module named 'apex', will use torch.optim instead",
]
ENDS = {
    "a bare kill": ("Killed\n", 137, Reason.CPU_MEMORY),
    "a crash without a word": ("", 139, Reason.CORE_DUMP),
    "a bare error": (f"{TRACEBACK}ConnectionResetError: [Errno 104] Connection reset by peer\n", 1, None),
    "GPU memory": (f"{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory.\n", 1, Reason.GPU_MEMORY),
    "NCCL": (f"{TRACEBACK}torch.distributed.DistBackendError: NCCL error: system error\n", 1, Reason.MPI_RUNTIME),
    "ECC": (f"{TRACEBACK}RuntimeError: CUDA error: uncorrectable ECC error encountered\n", 1, Reason.ECC),
}


def diagnosed(log: str, code: int) -> Diagnosis:
    return classify([RankLog(log=log.encode(), rank=0)], [End(exit_code=code, rank=0)])


@pytest.mark.parametrize("between", ["", "epoch 1 loss 2.1\nbuilding the index\n"], ids=["at once", "later"])
@pytest.mark.parametrize(("ending", "code", "reason"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("line", HARMLESS)
def test_a_harmless_line_is_never_the_sure_cause(
    line: str, between: str, ending: str, code: int, reason: Reason | None
) -> None:
    found = diagnosed(f"loading\n{line}\n{between}{ending}", code)
    assert not found.explicit or found.reason is reason, (found.reason, found.rule, found.evidence)
    if reason is not None and found.reason is not reason:
        assert reason in (Reason.CPU_MEMORY, Reason.CORE_DUMP), (found.reason, found.rule, found.evidence)


def test_alone_a_warning_is_named_but_not_for_sure() -> None:
    found = diagnosed("INFO: Loss is nan, stopping training\n", 1)
    assert (found.reason, found.explicit) == (Reason.DIVERGED, False)


@pytest.mark.parametrize("line", ["sh: 1: torchrun: not found", "run.sh: line 4: trian: command not found"])
def test_a_command_that_is_not_there_is_the_sure_cause_if_the_exit_code_says_so(line: str) -> None:
    found = diagnosed(f"{line}\n", 127)
    assert (found.reason, found.explicit, found.evidence) == (Reason.IMPORT, True, line)
    assert not diagnosed(f"{line}\n", 1).explicit


def test_a_line_that_says_that_the_program_gives_up_is_its_cause() -> None:
    found = diagnosed("ERROR: loss is nan, skipped 10 batches, giving up\n", 1)
    assert (found.reason, found.explicit) == (Reason.DIVERGED, True)
