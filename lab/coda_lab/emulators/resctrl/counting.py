"""The monitoring counters: bytes per monitoring id and domain, or a word where there is no number.

With assignable counters only a group that has one counts. On some hardware an id is Unavailable in a domain until it
has traffic there; the sum of a control group leaves it out. Source: `mon_event_count` in `fs/resctrl/monitor.c`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from coda_lab.emulators.resctrl.profiles import Monitoring
from coda_lab.emulators.resctrl.schemata import Refused

TOTAL, LOCAL = "mbm_total_bytes", "mbm_local_bytes"
UNASSIGNED, UNAVAILABLE = "Unassigned", "Unavailable"
Key = tuple[int, int, str]  # monitoring id, domain, event


class Counters:
    """All counters of a machine. `node` is a domain's part with sub-NUMA clustering; else always 0."""

    def __init__(self, monitoring: Monitoring, domains: tuple[int, ...]) -> None:
        self._monitoring = monitoring
        self._domains = domains
        self._bytes: dict[tuple[int, int, str, int], float] = {}
        self._assigned: set[Key] = set()
        self._seen: set[tuple[int, int]] = set()  # monitoring id, domain: it has had traffic there
        self._held = 0

    def begin(self, rmid: int) -> None:
        """A group takes the id: it starts at 0, with counters as far as some are free."""
        self._bytes = {key: count for key, count in self._bytes.items() if key[0] != rmid}
        self._seen = {key for key in self._seen if key[0] != rmid}
        for domain in self._domains:
            for event in (TOTAL, LOCAL):
                if event in self._monitoring.events and self.free(domain) > 0:
                    self._assigned.add((rmid, domain, event))

    def end(self, rmid: int) -> None:
        """The group of the id is gone."""
        self._assigned = {key for key in self._assigned if key[0] != rmid}

    def count(self, rmid: int, domain: int, total: float, local: float) -> None:
        """Add traffic, evenly over the domain's nodes; nothing where no counter is assigned."""
        if total > 0:
            self._seen.add((rmid, domain))
        for event, count in ((TOTAL, total), (LOCAL, local)):
            if self._counts((rmid, domain, event)):
                nodes = self._monitoring.nodes_per_cache
                for node in range(nodes):
                    key = (rmid, domain, event, node)
                    self._bytes[key] = self._bytes.get(key, 0.0) + count / nodes

    def read(self, rmids: Iterable[int], domain: int, event: str, node: int | None) -> str:
        """The content of the file: the sum over the ids that count, or a word if none does."""
        assigned = [rmid for rmid in rmids if self._counts((rmid, domain, event))]
        counting = [rmid for rmid in assigned if self._has_seen_traffic(rmid, domain)]
        if not counting:
            return UNAVAILABLE if assigned else UNASSIGNED
        nodes = range(self._monitoring.nodes_per_cache) if node is None else (node,)
        return str(int(sum(self._bytes.get((rmid, domain, event, at), 0.0) for rmid in counting for at in nodes)))

    def fall(self, rmid: int, by_bytes: float) -> None:
        """Every counter of the id loses up to `by_bytes`, as when hardware gives the id another counter."""
        for key, count in self._bytes.items():
            if key[0] == rmid:
                self._bytes[key] = max(0.0, count - by_bytes)

    def reset(self) -> None:
        """All counters start again at 0, without a word."""
        self._bytes.clear()

    def free(self, domain: int) -> int:
        """Assignable counters that are left in the domain; 0 where there are none to assign."""
        most = (self._monitoring.counters or 0) - self._held
        return most - sum(1 for key in self._assigned if key[1] == domain)

    def hold(self, left: int) -> None:
        """Take assignable counters away until at most `left` are free in each domain."""
        self._held += max(0, max(self.free(domain) for domain in self._domains) - left)

    def assignments(self, rmid: int) -> str:
        """The text of mbm_L3_assignments."""
        lines = []
        for event in (TOTAL, LOCAL):
            states = (f"{domain}={'e' if (rmid, domain, event) in self._assigned else '_'}" for domain in self._domains)
            lines.append(f"{event}:{';'.join(states)}\n")
        return "".join(lines)

    def assign(self, rmid: int, command: str) -> None:
        """Carry out `event:domain=state` (`*`: all domains, `e`: assign, `_`: do not). Raises Refused."""
        event, _, states = command.strip().partition(":")
        if event not in (TOTAL, LOCAL) or event not in self._monitoring.events:
            raise Refused(errno.EINVAL, f"Invalid event {event}")
        for state in states.split(";"):
            name, _, letter = state.partition("=")
            if letter not in ("e", "_") or (name != "*" and name not in map(str, self._domains)):
                raise Refused(errno.EINVAL, f"Invalid assign state {state}")
            for domain in self._domains if name == "*" else (int(name),):
                self._assign((rmid, domain, event), on=letter == "e")

    def _assign(self, key: Key, *, on: bool) -> None:
        if not on:
            self._assigned.discard(key)
            return
        if key in self._assigned:
            return
        if self.free(key[1]) <= 0:
            raise Refused(errno.ENOSPC, f"Failed to allocate counter for {key[2]} in domain {key[1]}")
        self._assigned.add(key)
        for node in range(self._monitoring.nodes_per_cache):
            self._bytes[(*key, node)] = 0.0

    def _has_seen_traffic(self, rmid: int, domain: int) -> bool:
        """The root's id always has: the kernel's own threads work in every domain."""
        return not self._monitoring.waits_for_traffic or rmid == 0 or (rmid, domain) in self._seen

    def _counts(self, key: Key) -> bool:
        return self._monitoring.counters is None or key in self._assigned
