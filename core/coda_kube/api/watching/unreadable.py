"""Objects that cannot be read, or not as a whole: said at once for each, and again while they stay so."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from coda_kube.say_again import SayAgain

log = logging.getLogger(__name__)

_MOST_SAID: Final = 20
_LONGEST: Final = 200  # characters of a cause


class Unreadable(dict[str, str]):
    """Why, by the object's key. `path`: of the collection."""

    def __init__(self, path: str, again: SayAgain) -> None:
        super().__init__()
        self._path = path
        self._again = again

    def note(self, key: str, why: str) -> None:
        """Say it at once for each object, until it can be read again."""
        if key not in self:
            log.warning("%s: %s cannot be read (%s); the others can", self._path, key, why[:_LONGEST])
            self._again.is_due()  # from now on
        self[key] = why[:_LONGEST]

    def keep(self, keys: Collection[str]) -> None:
        """Forget all other keys."""
        for key in self.keys() - keys:
            del self[key]

    def say_again(self) -> None:
        """Call this often: it says at times what still cannot be read."""
        if self and self._again.is_due():
            for key, why in [*self.items()][:_MOST_SAID]:
                log.warning("%s: %s still cannot be read (%s)", self._path, key, why)
