"""Which lines of a log each rule is tried on.

A log has many lines and a book many patterns, so they are never multiplied. Lines are compared by their letters alone:
equal ones are one shape. The words of all shapes are collected once; a pattern whose probe is not among them costs
nothing more. What is left is tried on a few lines of each pattern, and not for ever.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coda.diagnosis.log_lines import LogLines
from coda.diagnosis.patterns import Entry, ProbeIndex

MOST_TRIALS: Final = 1_800  # patterns on lines, of one log
MOST_TRIED_CHARS: Final = 1 << 19
MOST_LINES: Final = 400
MOST_CHECKS: Final = 30_000  # of the letters of a key
MOST_LETTERS: Final = 180_000  # of different lines: of more, the last ones, and those before that speak of a failure
_LETTERS_OF_FAILURES: Final = 80_000
_FAILURE: Final = re.compile("error|exception|fail|kill|abort|fault|memory|cancel|preempt|xid")
_LINES_PER_SHAPE: Final = 6  # equal but for their numbers: the first ones, and the last
_SHAPES_PER_PATTERN: Final = 24  # from each end of the log


@dataclass(slots=True)
class Work:
    """How much was done for one log."""

    letters: int = 0
    checks: int = 0
    trials: int = 0
    chars: int = 0


def matching_rules(lines: LogLines, probes: ProbeIndex, work: Work) -> list[tuple[int, list[int]]]:
    """Return each line that patterns match, in the order of the log, with the numbers of their rules.

    O(bytes). Where there is too much to try, the last lines go first."""
    same_shape = _lines_by_shape(lines)
    work.letters = sum(map(len, same_shape))
    tried: dict[int, list[Entry]] = defaultdict(list)
    for entry, shapes in _shapes_by_entry(list(same_shape), lines.words_of(same_shape.values()), probes, work):
        for shape in shapes:
            for index in same_shape[shape]:
                tried[index].append(entry)
    found = []
    for index in sorted(tried, reverse=True)[:MOST_LINES]:
        text = lines.line(index).text
        work.trials += len(tried[index])
        work.chars += len(tried[index]) * len(text)
        if work.trials > MOST_TRIALS or work.chars > MOST_TRIED_CHARS:
            break
        if matched := sorted({rule for rule, pattern in tried[index] if pattern.is_in(text)}):
            found.append((index, matched))
    return found[::-1]


def _lines_by_shape(lines: LogLines) -> dict[str, list[int]]:
    same_shape: dict[str, list[int]] = {}
    for index, shape in enumerate(lines.shapes):
        same = same_shape.get(shape)
        if same is None:
            same_shape[shape] = [index]
        elif len(same) < _LINES_PER_SHAPE:
            same.append(index)
        else:
            same[-1] = index
    return same_shape if sum(map(len, same_shape)) <= MOST_LETTERS else _some_of(same_shape)


def _some_of(same_shape: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the last shapes, and before them those that speak of a failure, in the order of the log."""
    kept, letters, failures = list[str](), 0, 0
    for shape in reversed(same_shape):
        if letters < MOST_LETTERS:
            letters += len(shape) + 1
        elif failures < _LETTERS_OF_FAILURES and _FAILURE.search(shape):
            failures += len(shape) + 1
        else:
            continue
        kept.append(shape)
    return {shape: same_shape[shape] for shape in reversed(kept)}


def _shapes_by_entry(
    shapes: Sequence[str], words: Sequence[list[str]], probes: ProbeIndex, work: Work
) -> list[tuple[Entry, list[str]]]:
    """Return the patterns that may match, each with the first and the last shapes that have the letters of its key."""
    entries_by_word = probes.entries_by_word(set().union(*words))
    looked_up = entries_by_word.keys()
    found: dict[Entry, list[str]] = defaultdict(list)
    for shape, of_shape in zip(reversed(shapes), reversed(words), strict=True):
        if looked_up.isdisjoint(of_shape):
            continue
        for word in looked_up & of_shape:
            entries = entries_by_word[word]
            work.checks += len(entries)
            for entry in entries:
                if entry[1].key in shape:
                    found[entry].append(shape)
        if work.checks > MOST_CHECKS:
            break
    most = _SHAPES_PER_PATTERN
    return [(entry, at if len(at) <= 2 * most else at[:most] + at[-most:]) for entry, at in found.items()]
