r"""What a rule looks for: a small part of regular expressions that cannot take more than linear time.

A pattern is a sequence of pieces with `.*` between them. The pieces are searched one after the other, each once, behind
the one before: a gap is never tried again, so it costs nothing. Inside a piece every choice is bounded: `?`, `{m,n}` on
one character, and alternatives. Their product is at most `MOST_CHOICES`, so a piece takes at most so many steps per
character. `+`, `*`, a repeated group, looking around and back references are refused when rules are loaded.

A pattern that begins with a letter matches at the start of a word only. Each pattern has a key: the letters of its
longest fixed part; a line without these letters is never tried. And it has a probe: one of its words, which is looked
up among the words of a log, so that most patterns cost nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Final

from coda.errors import InvalidInput

MOST_CHOICES: Final = 256
LEAST_LETTERS: Final = 3
LONGEST: Final = 400  # characters of one pattern

_TOKEN: Final = re.compile(
    r"\\(?P<escape>.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<count>\{\d*,?\d*\})|(?P<open>\((?:\?:)?)|(?P<other>.)"
)
_CLASSES: Final = frozenset("dswDSWbB")


class Where(Enum):
    """Where in a word of the text a probe stands."""

    WHOLE = auto()
    START = auto()
    END = auto()
    INSIDE = auto()


_RANKS: Final = {Where.WHOLE: 3, Where.START: 2, Where.END: 1, Where.INSIDE: 0}


@dataclass(frozen=True, slots=True)
class Probe:
    """A word, lower-case letters alone, that every text has that matches."""

    word: str
    where: Where


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern; `key`: lower-case letters that every match contains in this order without others between.

    Its pieces are compiled when it is first tried: most patterns never are, and all of the built-in ones take 1 s.
    """

    source: str
    key: str
    probe: Probe
    pieces: tuple[str, ...]
    flags: int = re.IGNORECASE

    def check(self) -> None:
        """Compile it now. Raises InvalidInput if it is no regular expression."""
        try:
            _compiled(self.pieces, self.flags)
        except (re.error, OverflowError, RecursionError) as error:
            raise _bad(self.source, f"is no regular expression: {error}") from error

    def is_in(self, text: str) -> bool:
        """True if the text has all pieces, in order. O(text), whatever the text is."""
        at = 0
        for piece in _compiled(self.pieces, self.flags):
            found = piece.search(text, at)
            if found is None:
                return False
            at = found.end()
        return True


def pattern_from_text(source: str) -> Pattern:
    """Return a pattern; case does not matter. Raises InvalidInput with one sentence that says what is not allowed.

    Whether it is a regular expression at all, `Pattern.check` says."""
    if len(source) > LONGEST:
        raise _bad(source, f"is longer than {LONGEST} characters")
    texts = re.split(r"(?<!\\)\.\*", source)
    runs = [run for number, text in enumerate(texts) for run in _checked(text, source, is_first=number == 0)]
    key = max((letters_of(run.text) for run in runs), key=len, default="")
    if len(key) < LEAST_LETTERS:
        raise _bad(source, f"needs {LEAST_LETTERS} fixed letters in a row, outside of ( ) and of what may be left out")
    if "A" <= source[0].upper() <= "Z":
        texts[0] = f"(?<![A-Za-z]){texts[0]}"
    probes = [probe for run in runs for probe in _probes(run)]
    return Pattern(source, key, max(probes, key=_usefulness), tuple(text for text in texts if text))


@cache
def _compiled(pieces: tuple[str, ...], flags: int) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(piece, flags) for piece in pieces)


def _probes(run: _Run) -> Iterator[Probe]:
    text = run.text.lower()
    for found in re.finditer("[a-z]{1,400}", text):
        starts = found.start() > 0 or run.starts_word
        ends = found.end() < len(text) or run.ends_word
        where = (Where.WHOLE if ends else Where.START) if starts else Where.END if ends else Where.INSIDE
        yield Probe(found.group(), where)


def _usefulness(probe: Probe) -> tuple[bool, int, int]:
    """Order probes: long words are rare; of a word a known start is looked up faster than its inside."""
    return len(probe.word) > 3, (_RANKS[probe.where] + 1) * min(len(probe.word), 9), len(probe.word)


def letters_of(text: str) -> str:
    """Return the lower-case ASCII letters of a text: what keys are searched in."""
    return "".join(char for char in text.lower() if "a" <= char <= "z")


@dataclass(slots=True)
class _Run:
    """A fixed part; whether no letter can stand before or behind it in a match."""

    text: str
    starts_word: bool
    ends_word: bool = False


def _checked(piece: str, source: str, *, is_first: bool) -> list[_Run]:
    """Return the fixed parts of a piece. Raises InvalidInput if it may take more than linear time."""
    scan = _Scan(source, starts_word=is_first)
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
    return [*scan.runs, scan.run]


class _Scan:
    """What was met so far in a piece: its fixed runs outside of groups, and in how many ways it can match."""

    def __init__(self, source: str, *, starts_word: bool) -> None:
        self._source = source
        self._alternatives: list[int] = []  # of each open group
        self._last = "nothing"  # what a repetition would repeat
        self.choices = 1
        self.runs: list[_Run] = []
        self.run = _Run("", starts_word)

    def repeat(self, text: str) -> None:
        if text in "*+":
            raise _bad(self._source, f"may not use {text}: write .* between two parts, or a bound such as \\d{{1,9}}")
        if self._last == "nothing":
            raise _bad(self._source, "repeats a repetition")
        if self._last == "group" and text != "?":
            raise _bad(self._source, "repeats a group")
        self.choices *= _choices(text, self._source)
        if self._last == "letter":
            self.run.text = self.run.text[:-1]
        self._end_run()
        self._last = "nothing"

    def begin_group(self, *, is_special: bool) -> None:
        if is_special:
            raise _bad(self._source, "may only use ( and (?: as groups")
        self._alternatives.append(1)
        self._end_run()
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
            self.run.text += text[-1]
            self._last = "letter"
        else:
            is_edge = text in (r"\b", "^", "$")
            self._end_run(is_edge=is_edge)
            self._last = "atom"

    def _end_run(self, *, is_edge: bool = False) -> None:
        self.run.ends_word = is_edge
        self.runs.append(self.run)
        self.run = _Run("", is_edge)


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


Entry = tuple[int, Pattern]
"""The number of a rule, and one of its patterns."""
_EDGE: Final = 4  # letters of a word's start or end by which a part of a word is looked up; fewer if it is shorter


class ProbeIndex:
    """Patterns by their probes: whole words, starts and ends of words, and parts of words."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries: Final = tuple(entries)
        by_place: dict[Where, dict[str, list[Entry]]] = {where: defaultdict(list) for where in Where}
        for entry in self.entries:
            by_place[entry[1].probe.where][entry[1].probe.word].append(entry)
        self._whole: Mapping[str, list[Entry]] = by_place[Where.WHOLE]
        self._inside: Mapping[str, list[Entry]] = by_place[Where.INSIDE]
        self._starts = _Starts(by_place[Where.START])
        self._ends = _Starts({part[::-1]: entries for part, entries in by_place[Where.END].items()})
        self._by_rule: dict[int, list[Pattern]] = defaultdict(list)
        for number, pattern in self.entries:
            self._by_rule[number].append(pattern)

    def is_matched(self, number: int, text: str) -> bool:
        """True if a pattern of this rule matches the text. O(its patterns), and O(text) for each that may match."""
        letters = letters_of(text)
        return any(pattern.key in letters and pattern.is_in(text) for pattern in self._by_rule.get(number, ()))

    def entries_by_word(self, words: Collection[str]) -> dict[str, list[Entry]]:
        """Return the patterns that a text with these words may match, by the word that says so. O(words)."""
        found: dict[str, list[Entry]] = defaultdict(list)
        for word in self._whole.keys() & words:
            found[word] += self._whole[word]
        for word in words:
            for entries in (*self._starts.of(word), *self._ends.of(word[::-1])):
                found[word] += entries
        joined = " ".join(words)
        for part in [part for part in self._inside if part in joined]:
            for word in words:
                if part in word:
                    found[word] += self._inside[part]
        return found


class _Starts:
    """Entries by the starts of words, looked up by their first letters: all of them, if a start is a short one.

    Many starts may have the same first letters, as all names of errors have the same end. So these are looked up by
    their lengths, too."""

    def __init__(self, entries_by_start: Mapping[str, list[Entry]]) -> None:
        self._by_edge: dict[int, dict[str, dict[int, dict[str, tuple[int, list[Entry]]]]]] = {}
        for number, (start, entries) in enumerate(entries_by_start.items()):
            letters = min(_EDGE, len(start))
            by_length = self._by_edge.setdefault(letters, {}).setdefault(start[:letters], {})
            by_length.setdefault(len(start), {})[start] = number, entries

    def of(self, word: str) -> list[list[Entry]]:
        """Return the entries of each start that the word has, in the order of the book for starts of one edge."""
        found: list[list[Entry]] = []
        for letters, by_edge in self._by_edge.items():
            if by_length := by_edge.get(word[:letters]):
                starts = [known for length, by_start in by_length.items() if (known := by_start.get(word[:length]))]
                found += [entries for _, entries in sorted(starts, key=_number_of)]
        return found


def _number_of(numbered: tuple[int, list[Entry]]) -> int:
    return numbered[0]
