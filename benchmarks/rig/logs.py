"""Logs of a mebibyte each: what jobs print, and what nobody means to print. The same bytes each time."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, cycle, islice
from typing import Final

from coda.diagnosis import built_in_rules

MIB: Final = 1 << 20
_TRACEBACK: Final = 'Traceback (most recent call last):\n  File "a{0}.py", line {0}, in f\n    g({0})\nKeyError: {0}\n'


def of_a_mebibyte(parts: Iterator[str]) -> bytes:
    """Return the parts, one after the other, until a mebibyte is full."""
    taken, size = list[bytes](), 0
    for part in parts:
        taken.append(part.encode())
        size += len(taken[-1])
        if size >= MIB:
            break
    return b"".join(taken)[:MIB]


def _numbers() -> Iterator[int]:
    return iter(range(1 << 30))


def _progress() -> Iterator[str]:
    rng = random.Random(1)
    return (f"epoch {i // 500} step {i} loss {rng.random():.4f} lr 0.001 {rng.random():.2f} it/s\n" for i in _numbers())


def _vocabulary(size: int, letters: tuple[int, int]) -> list[str]:
    rng = random.Random(2)
    return ["".join(rng.choices("etaoinshrdlucmfwypvbgkqjxz", k=rng.randint(*letters))) for _ in range(size)]


def _prose() -> Iterator[str]:
    rng, words = random.Random(3), _vocabulary(20_000, (2, 10))
    shares = list(accumulate(1 / (rank + 3) for rank in range(len(words))))
    return (" ".join(rng.choices(words, cum_weights=shares, k=14)) + "\n" for _ in _numbers())


def _new_words() -> Iterator[str]:
    words = cycle(_vocabulary(220_000, (4, 5)))
    return (" ".join(islice(words, 12)) + "\n" for _ in _numbers())


def _near_misses() -> Iterator[str]:
    """Lines that have all words of a pattern and do not match: its last sign is another one."""
    sources = [pattern.source for _, pattern in built_in_rules().probes.entries]
    plain = [re.sub(r"\(\?:([^|()]*)[^()]*\)|\\[bdwsDWS]|[\\?^$]|\{\d*,?\d*\}|\.\*", r" \1", text) for text in sources]
    return (f"{i} error: {text[:-1]}~\n" for i, text in enumerate(cycle(plain)))


def _examples() -> Iterator[str]:
    examples = [example for rule in built_in_rules().rules for example in rule.examples]
    return (f"[rank{i % 64}]: {line}\n" for i, text in enumerate(cycle(examples)) for line in text.split("\n"))


def _json_lines() -> Iterator[str]:
    return (json.dumps({"log": line, "stream": "stderr", "time": "2026-01-02T03:04:05Z"}) + "\n" for line in _prose())


KINDS: Final[Mapping[str, Callable[[], bytes]]] = {
    "progress": lambda: of_a_mebibyte(_progress()),
    "prose": lambda: of_a_mebibyte(_prose()),
    "JSON lines": lambda: of_a_mebibyte(_json_lines()),
    "tracebacks": lambda: of_a_mebibyte(_TRACEBACK.format(i) for i in _numbers()),
    "examples of all rules": lambda: of_a_mebibyte(_examples()),
    "near misses of all rules": lambda: of_a_mebibyte(_near_misses()),
    "words that nobody has met": lambda: of_a_mebibyte(_new_words()),
    "one line": lambda: of_a_mebibyte(cycle(["CUDA error: out of memory expected "])),
    "one line of one letter": lambda: b"x" * MIB,
    "lines of one letter": lambda: b"a\n" * (MIB // 2),
    "progress bars": lambda: of_a_mebibyte(
        f"\r {i % 101}%|####   | {i}/9000 [00:01<00:09, 3.1it/s]" for i in _numbers()
    ),
    "colours": lambda: of_a_mebibyte(f"\x1b[31;1merror {i}: {i * 7} of {i}\x1b[0m\n" for i in _numbers()),
    "escapes that never end": lambda: b"\x1b[" * (MIB // 2),
    "prefixes": lambda: of_a_mebibyte(f"[{i}]: [2]: [3]: [4]: [5]: error {i}\n" for i in _numbers()),
    "tracebacks of a hundred lines": lambda: of_a_mebibyte(
        "Traceback (most recent call last):\n" + f"  line {i} of somebody's file\n" * 100 for i in _numbers()
    ),
    "tracebacks of many ranks": lambda: of_a_mebibyte(
        "".join(f"[rank{i % 99}]: {line}\n" for line in _TRACEBACK.format(i).splitlines()) for i in _numbers()
    ),
    "tracebacks without an end": lambda: of_a_mebibyte(cycle(["Traceback (most recent call last):\n"])),
    "frames": lambda: of_a_mebibyte(f'  File "a.py", line {i}, in f\n' for i in _numbers()),
    "deep JSON": lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "opening braces": lambda: b'{"log": {"' * (MIB // 10),
    "binary": lambda: random.Random(5).randbytes(MIB),
    "half a character": lambda: "é".encode() * (MIB // 2 - 1) + b"\xc3",
}
"""Each kind of log by its name. "near misses" have the words of each pattern of each rule."""
