"""Where a gang goes: the fewest nodes, in the tightest domain that holds it. What must not live here: order, reasons.

Nodes are ranked by how many ranks of this gang they hold, most first ("most free first", counted in what the gang can
use, so that filling them in this order also takes the fewest), then by what would be left over. Gangs of one GPU go the
other way, to the fullest node that fits. Source: Philly (Jeon et al., ATC 2019), section 2.1; ties are our choice.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from coda.model import Resources
from coda.room import Room

Key = tuple[int, ...]
"""How good a node is for the gang, best first; ends in the node's number, so no two are equal."""


class Tally:
    """The ranks that one domain holds, and on how many nodes."""

    __slots__ = ("nodes_by_ranks", "ranks")

    def __init__(self) -> None:
        self.ranks = 0
        self.nodes_by_ranks: dict[int, int] = {}

    def count(self, ranks: int, nodes: int) -> None:
        """Add (or with a negative number take away) nodes that hold `ranks` each."""
        self.ranks += ranks * nodes
        self.nodes_by_ranks[ranks] = self.nodes_by_ranks.get(ranks, 0) + nodes

    def nodes_needed(self, replicas: int) -> int:
        """The fewest nodes of the domain that hold `replicas` ranks; the domain must hold them."""
        needed = 0
        for ranks in sorted(self.nodes_by_ranks, reverse=True):
            nodes = self.nodes_by_ranks[ranks]
            if nodes * ranks >= replicas:
                return needed - -replicas // ranks
            needed, replicas = needed + nodes, replicas - nodes * ranks
        return needed


class Candidates:
    """The nodes with room for at least one rank of some gang, best first, kept up to date with the shrinking room."""

    def __init__(self, room: Room, request: Resources, eligible: Iterable[int], *, packs: bool) -> None:
        self._room = room
        self._request = request
        self._packs = packs
        self._seen = len(room.journal)
        self._key_by_node: dict[int, Key] = {}
        self._tallies: tuple[dict[str, Tally], ...] = tuple({} for _ in room.levels)
        self.ranks_by_node: dict[int, int] = {}
        self.ranks = 0  # that all candidates hold together
        for number in eligible:
            self._admit(number)
        self._keys = sorted(self._key_by_node.values())

    def refresh(self) -> None:
        """Follow what was taken since the last call. O(nodes taken from)."""
        journal = self._room.journal
        if self._seen == len(journal):
            return
        for number in dict.fromkeys(journal[self._seen :]):
            key = self._key_by_node.pop(number, None)
            if key is None:
                continue  # not a candidate, and room never grows
            del self._keys[bisect_left(self._keys, key)]
            self._count(number, self.ranks_by_node.pop(number), -1)
            if self._admit(number):
                insort(self._keys, self._key_by_node[number])
        self._seen = len(journal)

    def place(self, replicas: int, within: int | None) -> list[tuple[int, int]] | None:
        """Nodes and how many ranks each gets, in rank order; None when the gang does not fit.

        One node if any holds it all; else one domain of the narrowest level that can, the one needing fewest nodes,
        then with most room, then by name; else, unless `within` (a level's index) forbids it, fewest nodes anywhere.
        O(domains) for a gang that stays in one, O(n log n) in the nodes of the domain it is spread over."""
        if self.ranks < replicas:
            return None
        best = self._keys[0][-1]
        if self.ranks_by_node[best] >= replicas:
            return [(best, replicas)]
        narrowest = len(self._tallies) - 1
        for level in range(narrowest, -1 if within is None else within - 1, -1):
            domain = self._best_domain(level, replicas)
            if domain is not None:
                return self._spread(self._room.levels[level].nodes_by_domain[domain], replicas)
        return self._spread(self._key_by_node, replicas) if within is None else None

    def most_ranks_in_one_domain(self, level: int) -> int:
        """How many ranks the roomiest domain of a level holds; 0 without any."""
        domains = self._room.levels[level].domain_by_node
        on_nodes = (ranks for number, ranks in self.ranks_by_node.items() if domains[number] is not None)
        in_domains = (tally.ranks for tally in self._tallies[level].values())
        return max(max(on_nodes, default=0), max(in_domains, default=0))

    def _admit(self, number: int) -> bool:
        free, request = self._room.free[number], self._request
        ranks = request.times_in(free)
        if not ranks:
            return False
        key: Key
        if self._packs:
            key = (free.gpus, free.cpu_m, free.memory_bytes, number)
        else:
            key = (
                -ranks,
                free.gpus - ranks * request.gpus,
                free.cpu_m - ranks * request.cpu_m,
                free.memory_bytes - ranks * request.memory_bytes,
                number,
            )
        self._key_by_node[number] = key
        self.ranks_by_node[number] = ranks
        self._count(number, ranks, 1)
        return True

    def _count(self, number: int, ranks: int, nodes: int) -> None:
        self.ranks += ranks * nodes
        for level, tally_by_domain in zip(self._room.levels, self._tallies, strict=True):
            domain = level.shared_by_node[number]
            if domain is not None:
                tally = tally_by_domain.get(domain)
                if tally is None:
                    tally = tally_by_domain[domain] = Tally()
                tally.count(ranks, nodes)

    def _best_domain(self, level: int, replicas: int) -> str | None:
        fitting = (
            (tally.nodes_needed(replicas), -tally.ranks, domain)
            for domain, tally in self._tallies[level].items()
            if tally.ranks >= replicas
        )
        return min(fitting, default=(0, 0, None))[2]

    def _spread(self, numbers: Iterable[int], replicas: int) -> list[tuple[int, int]]:
        """Fill the fewest of these nodes, those in roomy domains first among equals, and line neighbours up."""
        chosen: list[tuple[int, int]] = []
        for number in sorted((number for number in numbers if number in self._key_by_node), key=self._spread_key):
            ranks = min(self.ranks_by_node[number], replicas)
            chosen.append((number, ranks))
            replicas -= ranks
            if not replicas:
                break
        return self._lined_up(chosen)

    def _spread_key(self, number: int) -> tuple[int, list[tuple[int, str]], Key]:
        ranks = self.ranks_by_node[number]
        domains: list[tuple[int, str]] = []
        for level, tally_by_domain in zip(self._room.levels, self._tallies, strict=True):
            domain = level.shared_by_node[number]
            domains.append((-ranks, "") if domain is None else (-tally_by_domain[domain].ranks, domain))
        return -ranks, domains, self._key_by_node[number]

    def _lined_up(self, chosen: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Order nodes so that those of one domain are neighbours at every level, domains by their first node."""
        first_by_level: tuple[dict[str, int], ...] = tuple({} for _ in self._room.levels)
        keyed: list[tuple[list[int], int, int]] = []
        for turn, (number, ranks) in enumerate(chosen):
            path = [
                turn if (domain := level.shared_by_node[number]) is None else first.setdefault(domain, turn)
                for level, first in zip(self._room.levels, first_by_level, strict=True)
            ]
            keyed.append(([*path, turn], number, ranks))
        return [(number, ranks) for _, number, ranks in sorted(keyed)]
