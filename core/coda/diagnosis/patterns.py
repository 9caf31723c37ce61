r"""What a rule looks for: a small part of regular expressions that cannot take more than linear time.

A pattern is a sequence of pieces with `.*` between them. The pieces are searched one after the other, each once, behind
the one before: a gap is never tried again, so it costs nothing. Inside a piece every choice is bounded: `?`, `{m,n}` on
one character, and alternatives. Their product is at most `MOST_CHOICES`, so a piece takes at most so many steps per
character. `+`, `*`, a repeated group, looking around and back references are refused when rules are loaded.

Each pattern has a key: the letters of its longest fixed part. A line without these letters is never tried.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from coda.errors import InvalidInput

MOST_CHOICES: Final = 256
LEAST_LETTERS: Final = 3
LONGEST: Final = 400  # characters of one pattern

_TOKEN: Final = re.compile(
    r"\\(?P<escape>.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<count>\{\d*,?\d*\})|(?P<open>\((?:\?:)?)|(?P<other>.)"
)
_CLASSES: Final = frozenset("dswDSWbB")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern; `key`: lower-case letters that every match contains in this order without others between."""

    source: str
    key: str
    word: str  # the longest part of the key without a blank or another sign in it
    pieces: tuple[re.Pattern[str], ...]

    def is_in(self, text: str) -> bool:
        """True if the text has all pieces, in order. O(text), whatever the text is."""
        at = 0
        for piece in self.pieces:
            found = piece.search(text, at)
            if found is None:
                return False
            at = found.end()
        return True


def pattern_from_text(source: str) -> Pattern:
    """Compile a pattern; case does not matter. Raises InvalidInput with one sentence that says what is not allowed."""
    if len(source) > LONGEST:
        raise _bad(source, f"is longer than {LONGEST} characters")
    texts = re.split(r"(?<!\\)\.\*", source)
    fixed = max((_checked(text, source) for text in texts), key=lambda part: len(letters_of(part)))
    key = letters_of(fixed)
    if len(key) < LEAST_LETTERS:
        raise _bad(source, f"needs {LEAST_LETTERS} fixed letters in a row, outside of ( ) and of what may be left out")
    try:
        pieces = tuple(re.compile(text, re.IGNORECASE) for text in texts if text)
    except re.error as error:
        raise _bad(source, f"is no regular expression: {error}") from error
    word = max(re.findall("[a-z]{1,400}", fixed.lower()), key=len)
    return Pattern(source, key, word, pieces)


def letters_of(text: str) -> str:
    """Return the lower-case ASCII letters of a text: what keys are searched in."""
    return "".join(char for char in text.lower() if "a" <= char <= "z")


def _checked(piece: str, source: str) -> str:
    """Return the longest fixed part of a piece. Raises InvalidInput if it may take more than linear time."""
    scan = _Scan(source)
    for token in _TOKEN.finditer(piece):
        kind, text = token.lastgroup or "", token.group()
        if kind == "count" or (kind == "other" and text in "?*+"):
            scan.repeat(text)
        elif kind == "open":
            scan.begin_group(is_special=piece[token.end() : token.end() + 1] == "?")
        elif kind == "other" and text in "|)":
            scan.end_branch(text)
        else:
            scan.take_one(kind, text)
    if scan.choices > MOST_CHOICES:
        raise _bad(source, f"has {scan.choices} ways to match, more than {MOST_CHOICES}")
    return max([*scan.runs, scan.run], key=lambda part: len(letters_of(part)))


class _Scan:
    """What was met so far in a piece: its fixed runs outside of groups, and in how many ways it can match."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._alternatives: list[int] = []  # of each open group
        self._last = "nothing"  # what a repetition would repeat
        self.choices = 1
        self.runs: list[str] = []
        self.run = ""

    def repeat(self, text: str) -> None:
        if text in "*+":
            raise _bad(self._source, f"may not use {text}: write .* between two parts, or a bound such as \\d{{1,9}}")
        if self._last == "nothing":
            raise _bad(self._source, "repeats a repetition")
        if self._last == "group" and text != "?":
            raise _bad(self._source, "repeats a group")
        self.choices *= _choices(text, self._source)
        self._end_run(self.run[:-1] if self._last == "letter" else self.run)
        self._last = "nothing"

    def begin_group(self, *, is_special: bool) -> None:
        if is_special:
            raise _bad(self._source, "may only use ( and (?: as groups")
        self._alternatives.append(1)
        self._end_run(self.run)
        self._last = "nothing"

    def end_branch(self, text: str) -> None:
        if not self._alternatives:
            raise _bad(self._source, "needs ( ) around alternatives")
        if text == "|":
            self._alternatives[-1] += 1
            self._last = "nothing"
        else:
            self.choices *= self._alternatives.pop()
            self._last = "group"

    def take_one(self, kind: str, text: str) -> None:
        if kind == "escape" and text[1].isdigit():
            raise _bad(self._source, "may not refer back")
        is_fixed = text[1] not in _CLASSES if kind == "escape" else kind == "other" and text not in "^$."
        if is_fixed and not self._alternatives:
            self.run += text[-1]
            self._last = "letter"
        else:
            self._end_run(self.run)
            self._last = "atom"

    def _end_run(self, run: str) -> None:
        self.runs.append(run)
        self.run = ""


def _choices(text: str, source: str) -> int:
    if text == "?":
        return 2
    bounds = text[1:-1].split(",")
    if not bounds[-1].isdigit():
        raise _bad(source, f"needs an upper bound in {text}")
    most = int(bounds[-1])
    return 1 if len(bounds) == 1 else most - int(bounds[0] or 0) + 1


def _bad(source: str, why: str) -> InvalidInput:
    return InvalidInput(f"the pattern {source[:80]!r} {why}")
