"""Reads a list of JSON values one by one, with any line breaks, and never more than one value in memory.

A list that is cut short or not valid JSON cannot be read on, so it is refused with file, line and column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from coda.errors import InvalidInput

MAX_VALUE_CHARACTERS = 4_194_304  # a hundred times the largest job of the public logs
_CHUNK_CHARACTERS = 65_536
_BLANKS = re.compile(r"[ \t\r\n]*")


def json_values(path: Path, text: TextIO, first: str, line: int = 1) -> Iterator[tuple[int, object]]:
    """Yield each member of the list, with the line where it begins; `first` is line `line`, read from `text` before."""
    source = _Source(path, text, first, line)
    if source.peek() != "[":
        raise source.problem("a list of jobs is expected, which starts with '['")
    source.expect("[")
    if source.peek() == "]":
        source.expect("]")
    else:
        closed = False
        while not closed:
            yield source.value()
            closed = source.expect(",]") == "]"
    if source.peek():
        raise source.problem("more text after the end of the list")


class _Source:
    """A window over the text: what comes next, and at which line and column it stands."""

    def __init__(self, path: Path, text: TextIO, first: str, line: int) -> None:
        self._path = path
        self._text = text
        self._window = first
        self._at = 0  # of the next character, in the window
        self._line = line
        self._column = 1

    def peek(self) -> str:
        """Return the next character that is not blank; empty at the end."""
        while True:
            blanks = _BLANKS.match(self._window, self._at)
            assert blanks is not None  # it matches nothing at all, too
            self._advance(blanks.end())
            if self._at < len(self._window):
                return self._window[self._at]
            if not self._grow():
                return ""

    def expect(self, allowed: str) -> str:
        """Consume the next character, which must be one of `allowed`, and return it."""
        found = self.peek()
        if not found:
            raise self.problem("the file is cut short: the list is not closed")
        if found not in allowed:
            raise self.problem(f"{found!r} where {' or '.join(repr(one) for one in allowed)} is expected")
        self._advance(self._at + 1)
        return found

    def value(self) -> tuple[int, object]:
        """Consume the next value; return it with its line."""
        if not self.peek():
            raise self.problem("the file is cut short: the list is not closed")
        while True:
            try:
                value, end = _DECODER.raw_decode(self._window, self._at)
            except json.JSONDecodeError as error:
                if len(self._window) - self._at < MAX_VALUE_CHARACTERS and self._grow():
                    continue  # the value may only be cut by the window
                raise self._broken(error) from None
            except (RecursionError, ValueError):
                raise self.problem("a value that is nested too deeply, or a number with too many digits") from None
            if end == len(self._window) and self._grow():
                continue  # a number may go on
            line = self._line
            self._advance(end)
            return line, value

    def problem(self, sentence: str) -> InvalidInput:
        """Return the error with file, line and column of the next character."""
        return InvalidInput(f"{self._path}:{self._line}: column {self._column}: {sentence}")

    def _broken(self, error: json.JSONDecodeError) -> InvalidInput:
        began, length = self._line, len(self._window) - self._at
        self._advance(min(error.pos, len(self._window)))
        why = "damaged or cut short" if length < MAX_VALUE_CHARACTERS else f"or longer than {MAX_VALUE_CHARACTERS}"
        return self.problem(f"{error.msg} (in the value that begins in line {began}): {why}")

    def _advance(self, end: int) -> None:
        breaks = self._window.count("\n", self._at, end)
        if breaks:
            self._line += breaks
            self._column = end - self._window.rindex("\n", self._at, end)
        else:
            self._column += end - self._at
        self._at = end

    def _grow(self) -> bool:
        """Read on and drop what was consumed; twice as much each time, so that the cost stays linear."""
        rest = self._window[self._at :]
        more = self._text.read(max(_CHUNK_CHARACTERS, len(rest)))
        if more:
            self._window, self._at = rest + more, 0
        return bool(more)


_DECODER = json.JSONDecoder()
