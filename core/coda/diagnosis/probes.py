"""The patterns of a book by the words that are looked up, so that a log is read once for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from coda.diagnosis.patterns import Pattern, Where

Entry = tuple[int, Pattern]
"""The number of a rule, and one of its patterns."""
_EDGE: Final = 4  # letters of a word's start or end by which a part of a word is looked up


class ProbeIndex:
    """Patterns by their probes: whole words, starts and ends of words, and parts of words."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries: Final = tuple(entries)
        by_place: dict[Where, dict[str, list[Entry]]] = {where: defaultdict(list) for where in Where}
        for entry in self.entries:
            by_place[entry[1].probe.where][entry[1].probe.word].append(entry)
        self._whole: Mapping[str, list[Entry]] = by_place[Where.WHOLE]
        self._inside: Mapping[str, list[Entry]] = by_place[Where.INSIDE]
        self._starts = _by_edge(by_place[Where.START], slice(None, _EDGE))
        self._ends = _by_edge(by_place[Where.END], slice(-_EDGE, None))

    def entries_by_word(self, words: Collection[str]) -> dict[str, list[Entry]]:
        """Return the patterns that a text with these words may match, by the word that says so. O(words)."""
        found: dict[str, list[Entry]] = defaultdict(list)
        for word in self._whole.keys() & words:
            found[word] += self._whole[word]
        starts, ends = self._starts, self._ends
        for word in words:
            for part, entries in starts.get(word[:_EDGE], ()):
                if word.startswith(part):
                    found[word] += entries
            for part, entries in ends.get(word[-_EDGE:], ()):
                if word.endswith(part):
                    found[word] += entries
        joined = " ".join(words)
        for part in [part for part in self._inside if part in joined]:
            for word in words:
                if part in word:
                    found[word] += self._inside[part]
        return found


def _by_edge(entries_by_part: Mapping[str, list[Entry]], edge: slice) -> dict[str, list[tuple[str, list[Entry]]]]:
    found: dict[str, list[tuple[str, list[Entry]]]] = defaultdict(list)
    for part, entries in entries_by_part.items():
        found[part[edge]].append((part, entries))
    return dict(found)
