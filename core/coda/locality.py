"""Where a gang goes: the fewest nodes, in the tightest domain that holds it. What must not live here: order, reasons.

Nodes are ranked by how many ranks of this gang they hold, most first ("most free first", counted in what the gang can
use, so that filling them in this order also takes the fewest), then by what would be left over. Gangs of one GPU go the
other way, to the fullest node that fits. Source: Philly (Jeon et al., ATC 2019), section 2.1; ties are our choice.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from coda.model import Resources
from coda.pool import Counts, Pool
from coda.room import Room

Key = tuple[tuple[int, ...], tuple[tuple[str, int], ...]]
"""How good a free amount is for the gang, best first; different for different amounts."""


class Candidates:
    """The nodes with room for at least one rank of some gang, best first, kept up to date with the shrinking room."""

    def __init__(self, room: Room, pool: Pool, request: Resources, *, packs: bool) -> None:
        self._room = room
        self._pool = pool
        self._request = request
        self._packs = packs
        self._ranks: dict[int, int] = {}  # that fit into an amount; amounts too small are absent
        self._keys: list[tuple[Key, int]] = []  # amounts, best first; some may have no node left
        pool.refresh()
        self._seen = len(pool.new_amounts)
        for gpus, amounts in pool.amounts_by_gpus.items():
            if gpus >= request.gpus or not request.gpus:
                for amount in amounts:
                    self._judge(amount)
        self._keys.sort()

    def refresh(self) -> None:
        """Follow what was taken since the last call. O(new amounts)."""
        self._pool.refresh()
        amounts = self._pool.new_amounts
        for position in range(self._seen, len(amounts)):
            if amounts[position] not in self._ranks and self._judge(amounts[position]):
                insort(self._keys, self._keys.pop())
        self._seen = len(amounts)
        while self._keys and not self._pool.nodes_by_amount[self._keys[0][1]]:
            del self._ranks[self._keys.pop(0)[1]]

    @property
    def ranks(self) -> int:
        """How many ranks all candidates hold together."""
        nodes_by_amount = self._pool.nodes_by_amount
        return sum(ranks * nodes_by_amount[amount] for amount, ranks in self._ranks.items())

    @property
    def nodes(self) -> int:
        """How many nodes have room for at least one rank."""
        return sum(self._pool.nodes_by_amount[amount] for amount in self._ranks)

    def place(self, replicas: int, within: int | None) -> list[tuple[int, int]] | None:
        """Nodes and how many ranks each gets, in rank order; None when the gang does not fit.

        One node if any holds it all; else one domain of the narrowest level that can, the one needing fewest nodes,
        then with most room, then by name; else, unless `within` (a level's index) forbids it, fewest nodes anywhere.
        O(amounts in domains) for a gang that stays in one, O(n log n) in the nodes it may be spread over."""
        if not self._keys:
            return None
        best = self._keys[0][1]
        if self._ranks[best] >= replicas:
            return [(self._pool.first_node(best), replicas)]
        if replicas == 1 or self.ranks < replicas:
            return None
        for level in range(len(self._room.levels) - 1, -1 if within is None else within - 1, -1):
            domain = self._best_domain(level, replicas)
            if domain is not None:
                return self._spread(self._room.levels[level].nodes_by_domain[domain], replicas)
        return self._spread(self._pool.amount_by_node, replicas) if within is None else None

    def most_ranks_in_one_domain(self, level: int) -> int:
        """How many ranks the roomiest domain of a level holds, when all nodes of the pool are in one; 0 without any."""
        in_domains = (self._ranks_in(counts) for counts in self._pool.domains[level].values())
        on_nodes = (ranks for amount, ranks in self._ranks.items() if self._pool.nodes_by_amount[amount])
        return max(max(on_nodes, default=0), max(in_domains, default=0))

    def _judge(self, amount: int) -> bool:
        free, request = self._room.amounts[amount], self._request
        ranks = request.times_in(free) if free.gpus >= request.gpus or not request.gpus else 0
        if not ranks:
            return False
        rest = free if self._packs else free - request * ranks
        order = (rest.gpus, rest.cpu_m, rest.memory_bytes, rest.pods)
        key = (order if self._packs else (-ranks, *order), tuple(sorted(rest.other.items())))
        self._ranks[amount] = ranks
        self._keys.append((key, amount))
        return True

    def _ranks_in(self, counts: Counts) -> int:
        return sum(self._ranks.get(amount, 0) * nodes for amount, nodes in counts.items())

    def _nodes_needed(self, counts: Counts, replicas: int) -> int:
        """The fewest nodes of a domain that hold so many ranks; it must hold them."""
        needed = 0
        held = ((self._ranks.get(amount, 0), nodes) for amount, nodes in counts.items())
        for ranks, nodes in sorted(held, reverse=True):
            if nodes * ranks >= replicas:
                return needed - -replicas // ranks
            needed, replicas = needed + nodes, replicas - nodes * ranks
        return needed

    def _best_domain(self, level: int, replicas: int) -> str | None:
        best: tuple[int, int, str] | None = None
        for domain, counts in self._pool.domains[level].items():
            ranks = self._ranks_in(counts)
            if ranks >= replicas:
                rival = (self._nodes_needed(counts, replicas), -ranks, domain)
                best = rival if best is None else min(best, rival)
        return None if best is None else best[2]

    def _spread(self, numbers: Iterable[int], replicas: int) -> list[tuple[int, int]]:
        """Fill the fewest of these nodes, those in roomy domains first among equals, and line neighbours up."""
        ranked: list[tuple[int, list[tuple[int, str]], Key, int]] = []
        key_by_amount = {amount: key for key, amount in self._keys}
        ranks_by_domain: dict[tuple[int, str], int] = {}
        for number in numbers:
            amount = self._pool.amount_by_node.get(number, -1)
            if amount in key_by_amount:
                ranks = self._ranks[amount]
                ranked.append((-ranks, self._neighbours(number, ranks, ranks_by_domain), key_by_amount[amount], number))
        chosen: list[tuple[int, int]] = []
        for minus_ranks, _, _, number in sorted(ranked):
            chosen.append((number, min(-minus_ranks, replicas)))
            replicas += minus_ranks
            if replicas <= 0:
                break
        return self._lined_up(chosen)

    def _neighbours(self, number: int, ranks: int, known: dict[tuple[int, str], int]) -> list[tuple[int, str]]:
        """For each level, how roomy the node's domain is, as a sort key: most ranks first, then by name."""
        keys: list[tuple[int, str]] = []
        for index, level in enumerate(self._room.levels):
            domain = level.shared_by_node[number]
            if domain is None:
                keys.append((-ranks, ""))
                continue
            if (index, domain) not in known:
                known[index, domain] = self._ranks_in(self._pool.domains[index][domain])
            keys.append((-known[index, domain], domain))
        return keys

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
