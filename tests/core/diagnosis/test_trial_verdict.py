"""Which failures of a trial end its job: those that neither the world of one nor the single GPU can cause."""

from __future__ import annotations

import pytest

from coda.diagnosis import End, RankLog, classify, would_fail_the_gang
from tests.core.diagnosis.test_corpus import PROGRAMS, log_of

SEVERAL = ("$TORCHRUN", "mpirun", "mpiexec")


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        pytest.param("ModuleNotFoundError: No module named 'apex'", True, id="a package"),
        pytest.param("SyntaxError: invalid syntax", True, id="syntax"),
        pytest.param("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.idx'", True, id="a path"),
        pytest.param("PermissionError: [Errno 13] Permission denied: '/data/out'", True, id="a right"),
        pytest.param("train.py: error: unrecognized arguments: --learning-rate 3", True, id="an argument"),
        pytest.param("TypeError: __init__() got an unexpected keyword argument 'biass'", True, id="a name"),
        pytest.param("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB", False, id="memory"),
        pytest.param(
            "AssertionError: world size (1) is not divisible by tensor parallel size (8)", False, id="a split"
        ),
        pytest.param("ValueError: WORLD_SIZE must be 4, got 1", False, id="a number of ranks"),
        pytest.param("RuntimeError: CUDA error: invalid device ordinal", False, id="a second GPU"),
        pytest.param("AssertionError: Invalid device id", False, id="a second GPU of DataParallel"),
        pytest.param("ValueError: num_nodes must be at least 2", False, id="nodes"),
        pytest.param("AssertionError: global batch size 30 must be divisible by 8", False, id="a batch"),
        pytest.param("AssertionError", False, id="assert world == 4"),
        pytest.param("IndexError: list index out of range", False, id="peers[1]"),
        pytest.param("ZeroDivisionError: integer division or modulo by zero", False, id="shares of world - 1"),
        pytest.param("KeyError: 1", False, id="settings by world size"),
        pytest.param("KeyError: 'train_loss'", True, id="a key"),
        pytest.param("RuntimeError: Address already in use", False, id="a port"),
        pytest.param("RuntimeError: CUDA error: uncorrectable ECC error encountered", False, id="a broken GPU"),
        pytest.param("OSError: [Errno 28] No space left on device", False, id="a full disk, of this node perhaps"),
        pytest.param("Segmentation fault (core dumped)", False, id="a crash"),
    ],
)
def test_what_ends_a_job_in_its_trial(line: str, ends: bool) -> None:
    log = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n{line}\n'
    found = classify([RankLog(log=log.encode(), rank=0)], [End(exit_code=1, rank=0)])
    assert would_fail_the_gang(found) is ends, (found.reason, found.evidence)


def test_most_programs_that_fail_for_good_are_found_in_a_trial() -> None:
    """Of the corpus, those of one process: what they print does not depend on the size of the gang."""
    alone = [name for name, program in PROGRAMS.items() if not any(word in program["run"] for word in SEVERAL)]
    found = []
    for name in alone:
        code, log = log_of(name)
        found.append(classify([RankLog(log=log.encode(), rank=0)], [End(exit_code=code, rank=0)]))
    deterministic = [one for one in found if one.retry.value == "no"]
    ended = [one for one in found if would_fail_the_gang(one)]
    assert len(ended) >= 0.5 * len(alone)
    assert len(ended) >= 0.7 * len(deterministic)
    assert all(one in deterministic and one.explicit for one in ended)
