"""What a program only mentions, or survives, is not why it ended; and a program that did not fail has no cause."""

from __future__ import annotations

import pytest

from coda.diagnosis import End, RankLog, Reason, classify

PROGRESS = "".join(f"epoch {i} step {i} loss 0.{i} lr 0.01\n" for i in range(12))
TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 4, in <module>\n    run(x)\n'
MISSING = f"{TRACEBACK}FileNotFoundError: [Errno 2] No such file or directory: '/set/7.jpg'\n"
WRONG = f"{TRACEBACK}IndexError: pop from empty list\n"


def reason(log: str, code: int | None = None) -> Reason:
    return classify([RankLog(log=log.encode())], [End(exit_code=code)]).reason


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(PROGRESS, id="progress alone"),
        pytest.param(
            f"a.py:3: UserWarning: invalid value is not supported; it must be set\n{PROGRESS}", id="a warning"
        ),
        pytest.param("a.py:3: RuntimeWarning: invalid value encountered in divide\n", id="a warning alone"),
        pytest.param("INFO:root:config must be specified, or a default is used\n", id="a line of information"),
        pytest.param("I tensorflow/pool_allocator.cc:247] put_count=1 evicted_count=1000 rate 0.07\n", id="a counter"),
        pytest.param("[I socket.cpp:849] [c10d] The client socket has connected to [node-1]:2577\n", id="connected"),
        pytest.param(f"{MISSING}{PROGRESS}", id="a traceback that it survived"),
        pytest.param(f"[WARN] cannot read set/3.csv: 'utf-8' codec can't decode byte 0xb7\n{PROGRESS}", id="skipped"),
        pytest.param(f"Exception ignored in: <function Pool.__del__>\n{WRONG}", id="a destructor"),
        pytest.param(f"--- Logging error ---\n{WRONG}", id="a logger"),
        pytest.param("Token indices sequence length is longer than the specified maximum (9 > 8)\n", id="a hint"),
        pytest.param("  device_map='auto',\n  fault_tolerant=True)\n", id="a configuration"),
        pytest.param("step 3 loss 0.2 num_preempted 0 out of range 0\n", id="a metric"),
    ],
)
def test_a_log_without_a_failure_has_no_cause(log: str) -> None:
    assert reason(log) is Reason.NO_SIGNATURE


def test_who_ended_well_did_not_fail_whatever_the_log_says() -> None:
    assert reason(MISSING, 0) is Reason.NO_SIGNATURE
    assert reason(MISSING, 1) is Reason.INPUTS


def test_what_a_rank_survived_is_the_cause_if_it_failed_and_nothing_else_is_known() -> None:
    """Output to a file is written late: progress from before a failure may stand behind it."""
    assert reason(MISSING + PROGRESS, 1) is Reason.INPUTS
    assert reason(MISSING + PROGRESS, 137) is Reason.CPU_MEMORY
    assert reason(MISSING.replace("<module>", "load") + PROGRESS, 1) is Reason.NO_SIGNATURE


def test_the_failure_behind_progress_is_the_cause() -> None:
    assert reason(MISSING + PROGRESS + WRONG) is Reason.SEMANTIC
    between = "".join(PROGRESS.splitlines(keepends=True)[:4])
    assert reason(MISSING + between + WRONG) is Reason.SEMANTIC


def test_a_long_log_behind_a_failure_without_a_word_of_it_shows_that_it_went_on() -> None:
    rest = "".join(f"sample {'abcdefgh'[i % 8]}{i} is done\n" for i in range(400))
    assert reason(WRONG + rest) is Reason.NO_SIGNATURE
    assert reason(WRONG + rest, 1) is Reason.SEMANTIC


def test_the_progress_of_others_says_nothing_about_a_rank() -> None:
    failed = "".join(f"[rank3]: {line}\n" for line in WRONG.splitlines())
    others = "".join(f"[rank{i % 3}]: {line}\n" for i, line in enumerate(PROGRESS.splitlines()))
    assert reason(failed + others) is Reason.SEMANTIC


def test_a_shell_goes_on_after_a_command_that_is_not_there() -> None:
    log = "job.sh: line 3: module: command not found\n"
    assert reason(log + WRONG) is Reason.SEMANTIC
    assert reason(log) is Reason.IMPORT


def test_peers_that_the_launcher_ends_are_not_preempted() -> None:
    log = (
        "E1125 02:20:16 70 api.py:1002] failed (exitcode: -11) local_rank: 0 (pid: 7112) of binary: /usr/bin/python3\n"
        "  exitcode  : -15 (pid: 7113)  (SIGTERM)\n  traceback : Signal 15 (SIGTERM) received by PID 7113\n"
        "  exitcode  : -11 (pid: 7112)  (SIGSEGV)\n  traceback : Signal 11 (SIGSEGV) received by PID 7112\n"
    )
    assert reason(log, 1) is Reason.CORE_DUMP


def test_a_guess_of_the_platform_proves_nothing() -> None:
    log = "(raylet) A worker died or was killed by an unexpected system error. Some common causes include: "
    assert reason(log + "(1) the OOM killer, (2) SIGSEGV\n") is Reason.MPI_RUNTIME


def test_the_header_of_a_notebook_names_the_exception() -> None:
    assert reason("KeyError                                  Traceback (most recent call last)\n") is Reason.SEMANTIC
