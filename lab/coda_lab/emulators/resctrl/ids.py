"""Hardware ids that run out: classes of service at once, monitoring ids after a while in limbo."""

from __future__ import annotations

import errno

from coda_lab.emulators.resctrl.schemata import Refused


class Ids:
    """Ids 1 to `count` - 1; 0 is the root's. A freed id is ready again `limbo_s` later."""

    def __init__(self, count: int, word: str) -> None:
        self._free = list(range(1, count))
        self._limbo: list[tuple[float, int]] = []
        self._word = word

    def take(self, now_s: float) -> int:
        """The lowest free id. Raises Refused: EBUSY while freed ones wait, ENOSPC when there is none at all."""
        self._drain(now_s)
        if not self._free:
            raise Refused(errno.EBUSY if self._limbo else errno.ENOSPC, f"Out of {self._word}")
        return self._free.pop(0)

    def give(self, number: int, ready_s: float) -> None:
        """Give an id back; it can be taken again from `ready_s` on."""
        self._limbo.append((ready_s, number))

    def hold(self, left: int) -> None:
        """Take ids away permanently until at most `left` are free."""
        del self._free[left:]

    def _drain(self, now_s: float) -> None:
        self._free = sorted([*self._free, *(number for ready_s, number in self._limbo if ready_s <= now_s)])
        self._limbo = [(ready_s, number) for ready_s, number in self._limbo if ready_s > now_s]
