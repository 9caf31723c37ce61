"""Objects that a cache holds no more: a late answer or event in an old version must not bring them back."""

from __future__ import annotations

from typing import Final

_MOST: Final = 10_000


class Tombstones:
    """For each key the version of its end, or in which it was forgotten. The oldest are given up."""

    def __init__(self) -> None:
        self._by_key: dict[str, tuple[int, bool]] = {}  # its version, and whether it ended

    def bury(self, key: str, version: int, *, has_ended: bool) -> None:
        """Note that the object is gone, or with `has_ended` false that it exists and is not wanted any more."""
        known, _ = self._by_key.pop(key, (version, has_ended))
        self._by_key[key] = max(version, known), has_ended
        if len(self._by_key) > _MOST:
            del self._by_key[next(iter(self._by_key))]

    def hides(self, key: str, version: int, listed_at: int | None) -> bool:
        """True if the object does not come back in this version.

        `listed_at`: it is of a list of that version. A list that is not older than the end knows better: it shows what
        was written again by a restored backup, or has never ended."""
        if key not in self._by_key:
            return False
        known, has_ended = self._by_key[key]
        is_listed = listed_at is not None and known <= listed_at and (version < known or has_ended)
        return version <= known and not is_listed

    def lift(self, key: str, version: int) -> None:
        """The object was just read in this version."""
        if self._by_key.get(key, (-1, True))[0] == version:
            del self._by_key[key]

    def clear(self) -> None:
        """Forget all."""
        self._by_key.clear()
