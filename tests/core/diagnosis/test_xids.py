"""What the driver reported decides beside what programs print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.diagnosis import End, RankLog, Reason, Retry, classify
from coda.diagnosis.xids import XIDS, SeenXid, XidKind, heaviest, kind_of, xid_text

TYPO = b"Traceback (most recent call last):\n  File \"t.py\", line 3\nNameError: name 'modle' is not defined\n"
LAUNCH = (
    b'Traceback (most recent call last):\n  File "t.py", line 3\nRuntimeError: CUDA error: unspecified launch failure\n'
)
NCCL = b"[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n"


def end(*xids: int, rank: int = 0, code: int | None = 1) -> End:
    return End(exit_code=code, rank=rank, xids=tuple(SeenXid(xid, "GPU-1") for xid in xids))


@pytest.mark.parametrize(
    ("log", "xids", "reason", "retry"),
    [
        pytest.param(b"", (48,), Reason.ECC, Retry.OTHER_NODE, id="nothing was printed"),
        pytest.param(NCCL, (79,), Reason.CUDA, Retry.OTHER_NODE, id="the network seems to blame"),
        pytest.param(TYPO, (79,), Reason.CUDA, Retry.OTHER_NODE, id="hardware decides over every log"),
        pytest.param(TYPO, (31,), Reason.SEMANTIC, Retry.NO, id="what a program may cause does not"),
        pytest.param(TYPO, (63,), Reason.SEMANTIC, Retry.NO, id="nor what was only recorded"),
        pytest.param(b"", (63,), Reason.ECC, Retry.OTHER_NODE, id="recorded, and nothing else is known"),
        pytest.param(LAUNCH, (31,), Reason.INVALID_ACCESS, Retry.ONCE, id="the program, not the GPU"),
        pytest.param(LAUNCH, (109,), Reason.CUDA, Retry.OTHER_NODE, id="perhaps the GPU"),
        pytest.param(LAUNCH, (), Reason.CUDA, Retry.OTHER_NODE, id="no Xid"),
        pytest.param(b"", (43,), Reason.NO_SIGNATURE, Retry.YES, id="a clean-up proves nothing"),
        pytest.param(b"", (45, 999), Reason.NO_SIGNATURE, Retry.YES, id="nor does what nobody knows"),
        pytest.param(b"", (45, 31, 48), Reason.ECC, Retry.OTHER_NODE, id="the heaviest of several"),
    ],
)
def test_logs_and_xids(log: bytes, xids: tuple[int, ...], reason: Reason, retry: Retry) -> None:
    found = classify([RankLog(log=log, rank=0)], [end(*xids)])
    assert (found.reason, found.retry) == (reason, retry)
    assert found.xid == (None if kind_of(max(xids, default=0)) is XidKind.SECONDARY else heaviest(end(*xids).xids).xid)  # type: ignore[union-attr]


def test_the_rank_whose_gpu_failed_is_the_root() -> None:
    found = classify([RankLog(log=NCCL, rank=0)], [end(rank=0), end(119, rank=3, code=None)])
    assert (found.rank, found.xid, found.explicit) == (3, 119, True)
    assert found.evidence == "the node's agent saw Xid 119 on GPU-1: the GPU's system processor does not answer"


def test_a_peer_s_own_error_explains_nobody_else() -> None:
    found = classify([RankLog(log=TYPO, rank=0)], [end(rank=0), end(31, rank=1)])
    assert (found.reason, found.rank, found.xid) == (Reason.SEMANTIC, 0, None)


@pytest.mark.parametrize("process", ["[rank27]: ", "[rank1]: ", "[default5]:", "27: ", ""])
def test_a_number_that_a_line_names_is_a_process_and_no_rank(process: str) -> None:
    """A rank has a process per GPU. PyTorch prints a process's number in the gang, torchrun the one in the rank."""
    log = LAUNCH.decode().replace("\n", f"\n{process}")
    found = classify([RankLog(log=f"{process}{log}".encode(), rank=3)], [end(rank=0, code=None), end(31, rank=3)])
    assert (found.reason, found.rank, found.xid) == (Reason.INVALID_ACCESS, 3, 31)


def test_of_a_log_that_is_nobody_s_the_line_names_the_rank() -> None:
    assert classify([RankLog(log=b"[rank27]: RuntimeError: CUDA error: unspecified launch failure\n")]).rank == 27


def test_a_job_that_ended_well_has_no_cause() -> None:
    assert classify([], [end(48, code=0)]).reason is Reason.NO_SIGNATURE


def test_a_message_of_a_pod_is_words_and_no_xid() -> None:
    """Users write it: it explains their own job, and `xid`, which counts against the node, stays empty."""
    found = classify([], [End(exit_code=1, said=("NVRM: Xid (PCI:0000:86:00): 48, Double Bit ECC Error",), rank=0)])
    assert (found.reason, found.xid) == (Reason.ECC, None)


@given(st.lists(st.builds(SeenXid, st.integers(0, 300), st.text(max_size=3)), max_size=6))
def test_the_heaviest_rests_on_no_order(seen: list[SeenXid]) -> None:
    assert heaviest(seen) == heaviest(reversed(seen))
    assert all(xid_text(one) for one in seen)


def test_every_xid_has_one_meaning() -> None:
    assert all(
        facts.meaning and facts.reason in (Reason.ECC, Reason.CUDA, Reason.CUDA_INIT, Reason.INVALID_ACCESS)
        for facts in XIDS.values()
    )
