"""Logs that no program means to print, or that somebody means to be slow: always an answer, soon."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coda.diagnosis import End, RankLog, Reason, classify

MIB = 1 << 20
TRACEBACK = b'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nKeyError: 3\n'
HOSTILE = {
    "one line": b"CUDA error: out of memory expected " * (MIB // 35),
    "one line of x": b"x" * MIB,
    "empty lines": b"\n" * MIB,
    "short lines": b"a\n" * (MIB // 2),
    "carriage returns": b"\r" * MIB,
    "escapes that never end": b"\x1b[" * (MIB // 2),
    "long escapes": b"\x1b]0;" + b"t" * MIB,
    "tracebacks": TRACEBACK * (MIB // len(TRACEBACK)),
    "tracebacks without an end": b"Traceback (most recent call last):\n" * 30_000,
    "frames": b'  File "a.py", line 1, in f\n' * 38_000,
    "prefixes": b"[1]: [2]: [3]: [4]: [5]: [6]: error\n" * 29_000,
    "opening braces": b'{"log": {"' * (MIB // 10),
    "deep JSON": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "binary": random.Random(3).randbytes(MIB),
    "half a character": "é".encode() * (MIB // 2) + b"\xc3",
    "keys everywhere": b"error exception cuda memory file open read nccl killed signal exit code\n" * 14_000,
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_log_gets_an_answer(name: str) -> None:
    assert classify([RankLog(log=HOSTILE[name])]).reason in Reason


def test_a_cause_before_and_behind_a_huge_line_is_found() -> None:
    cause = b"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    assert classify([RankLog(log=cause + b"y" * (MIB // 2))]).reason is Reason.GPU_MEMORY
    assert classify([RankLog(log=b"y" * (3 * MIB) + cause)]).reason is Reason.GPU_MEMORY
    assert classify([RankLog(log=b"y" * (3 * MIB) + cause[1:])]).reason is Reason.GPU_MEMORY


def test_of_a_huge_log_the_end_is_looked_at() -> None:
    early = b"ModuleNotFoundError: No module named 'apex'\n" + b"epoch 1 loss 0.5\n" * 200_000
    assert classify([RankLog(log=early)]).reason is Reason.NO_SIGNATURE


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(codec=None), max_size=20), max_size=3))
@example(["bad \ud83d"])
def test_any_text_in_json_and_at_an_end_gets_an_answer(texts: list[str]) -> None:
    """A logger that cuts a text at a length may leave half a character."""
    log = b"".join(json.dumps({"level": "error", "msg": text}).encode() + b"\n" for text in texts)
    assert classify([RankLog(log=log)], [End(exit_code=1, said=tuple(texts))]).reason in Reason


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=3000))
def test_any_bytes_get_an_answer(log: bytes) -> None:
    found = classify([RankLog(log=log)])
    assert found.line is None or 1 <= found.line <= log.count(b"\n") + log.count(b"\r") + 1000


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*TRACEBACK.split(b"\n"), b"Killed", b"[rank1]: x", b"exit code 3", b""]), max_size=40))
def test_the_answer_does_not_depend_on_how_often_it_is_asked(lines: list[bytes]) -> None:
    log = b"\n".join(lines)
    assert classify([RankLog(log=log)]) == classify([RankLog(log=log)])
