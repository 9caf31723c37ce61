"""The patterns of a book by the words that are looked up, so that a log is read once for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from coda.diagnosis.patterns import Pattern, Where

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
