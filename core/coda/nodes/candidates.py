"""Where a gang goes: the fewest nodes, in the tightest domain that holds it. What must not live here: order, reasons.

Nodes are ranked by how many ranks of this gang they hold, most first ("most free first", counted in what the gang can
use, so that filling them in this order also takes the fewest), then by what would be left over. Gangs of one GPU go the
other way, to the fullest node that fits. Source: Philly (Jeon et al., ATC 2019), section 2.1; ties are our choice.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from typing import Any

from coda.model.resources import Resources
from coda.nodes.node_groups import Counts, GroupMove, NodeGroups

Key = tuple[Any, ...]
"""How good a free amount is for the gang, best first; different for different amounts."""

Score = Callable[[Resources, Resources, Resources], tuple[float, ...]]
"""How good a node is for a gang of one rank, lowest first: what it asks for, what is free there, and the node's size
(ties: fewest GPUs, cores, memory and pods free)."""


class Candidates:
    """The nodes with room for at least one rank of some gang, best first, kept up to date with the changing room."""

    def __init__(self, groups: NodeGroups, request: Resources, *, packs: bool, score: Score | None = None) -> None:
        self._all_ranks = self._all_nodes = 0  # as `ranks` and `nodes`
        self._capacity = groups.capacity
        self._groups = groups
        self._request = request
        self._packs = packs
        self._score = score
        self._ranks: dict[int, int] = {}  # that fit into an amount
        self._keys: list[tuple[Key, int]] = []  # amounts with room, best first; some may have no node left
        self._refused_from: int | None = None  # so many ranks, or more, do not fit until a node gains room
        self._place = self._place_of_sums = -1
        self.refresh()

    @property
    def ranks(self) -> int:
        """How many ranks all of them hold together. Cost as of `refresh`, which must have been called."""
        self._sum_up()
        return self._all_ranks

    @property
    def nodes(self) -> int:
        """How many nodes have room for at least one rank. Cost as of `refresh`, which must have been called."""
        self._sum_up()
        return self._all_nodes

    def refresh(self) -> None:
        """Follow what changed since the last call. O(nodes whose room changed), or O(amounts) where these are fewer."""
        groups = self._groups
        if groups.place != self._capacity.journal.end:
            groups.refresh()
        moves, nodes_by_amount, place = groups.moves, groups.nodes_by_amount, self._place
        if place == moves.end:
            return
        self._place = moves.end
        news = moves.since(place) if place >= 0 and moves.end - place <= len(nodes_by_amount) else None
        ranks_by_amount = self._ranks
        for amount in nodes_by_amount if news is None else [new for _, new in news if new is not None]:
            if amount not in ranks_by_amount and amount in nodes_by_amount:
                self._judge(amount)
        while self._keys and self._keys[0][1] not in nodes_by_amount:
            del ranks_by_amount[self._keys.pop(0)[1]]

    def may_hold(self, replicas: int) -> bool:
        """False when it is known that so many ranks do not fit. `refresh` first."""
        if replicas == 1:
            return bool(self._keys)
        return replicas <= self.ranks and (self._refused_from is None or replicas < self._refused_from)

    def place(self, replicas: int, within: int | None) -> list[tuple[int, int]] | None:
        """Nodes and how many ranks each gets, in rank order; None when the gang does not fit.

        One node if any holds it all; else one domain of the narrowest level that can, the one needing fewest nodes,
        then with most room, then by name; else, unless `within` (a level's index) forbids it, fewest nodes anywhere.
        O(amounts in domains) for a gang that stays in one, O(n log n) in the nodes it may be spread over."""
        if not self.may_hold(replicas):
            return None
        shares = self._place_whole(replicas, within)
        if shares is None:
            self._refused_from = replicas
        return shares

    def _place_whole(self, replicas: int, within: int | None) -> list[tuple[int, int]] | None:
        best = self._keys[0][1]
        if self._ranks[best] >= replicas:
            return [(self._groups.first_node(best), replicas)]
        if replicas == 1:
            return None
        for level in range(len(self._capacity.levels) - 1, -1 if within is None else within - 1, -1):
            domain = self._best_domain(level, replicas)
            if domain is not None:
                return self._spread(self._capacity.levels[level].nodes_by_domain[domain], replicas)
        return self._spread(self._groups.amount_by_node, replicas) if within is None else None

    def most_ranks_in_one_domain(self, level: int) -> int:
        """How many ranks the roomiest domain of a level holds, when all nodes of the pool are in one; 0 without any."""
        in_domains = (self._ranks_in(counts) for counts in self._groups.domains[level].values())
        on_nodes = (self._ranks_of(amount) for amount in self._groups.nodes_by_amount)
        return max(max(on_nodes, default=0), max(in_domains, default=0))

    def _sum_up(self) -> None:
        """Only gangs of several ranks ask for sums."""
        moves, nodes_by_amount, place = self._groups.moves, self._groups.nodes_by_amount, self._place_of_sums
        if place == moves.end:
            return
        self._place_of_sums = moves.end
        news = moves.since(place) if place >= 0 and moves.end - place <= len(nodes_by_amount) else None
        if news is not None:
            for move in news:
                self._follow(move)
            return
        held = [(self._ranks_of(amount), nodes) for amount, nodes in nodes_by_amount.items()]
        self._all_ranks = sum(ranks * nodes for ranks, nodes in held)
        self._all_nodes = sum(nodes for ranks, nodes in held if ranks)
        self._refused_from = None

    def _follow(self, move: GroupMove) -> None:
        before = 0 if move.old is None else self._ranks_of(move.old)
        after = 0 if move.new is None else self._ranks_of(move.new)
        self._all_ranks += after - before
        self._all_nodes += (after > 0) - (before > 0)
        if after > before:
            self._refused_from = None

    def _ranks_of(self, amount: int) -> int:
        ranks = self._ranks.get(amount)
        return self._times_in(amount) if ranks is None else ranks

    def _times_in(self, amount: int) -> int:
        free, request = self._capacity.amounts[amount], self._request
        return request.times_in(free) if free.gpus >= request.gpus or not request.gpus else 0

    def _judge(self, amount: int) -> None:
        """How good is an amount that a node has now."""
        ranks = self._ranks[amount] = self._times_in(amount)
        if ranks:
            insort(self._keys, (self._key(amount, self._capacity.amounts[amount], ranks), amount))

    def _key(self, amount: int, free: Resources, ranks: int) -> Key:
        rest = free if self._packs or self._score else free - self._request * ranks
        order = (rest.gpus, rest.cpu_m, rest.memory_bytes, rest.pods)
        others = tuple(sorted(item for item in rest.other.items() if item[1])) if rest.other else ()
        if self._score is None:
            return (order if self._packs else (-ranks, *order), others)
        size = self._capacity.sizes[amount]
        whole = (size.gpus, size.cpu_m, size.memory_bytes, size.pods, tuple(sorted(size.other.items())))
        return (self._score(self._request, free, size), order, others, whole)

    def _ranks_in(self, counts: Counts) -> int:
        return sum(self._ranks_of(amount) * nodes for amount, nodes in counts.items())

    def _nodes_needed(self, counts: Counts, replicas: int) -> int:
        """The fewest nodes of a domain that hold so many ranks; it must hold them."""
        needed = 0
        held = ((self._ranks_of(amount), nodes) for amount, nodes in counts.items())
        for ranks, nodes in sorted(held, reverse=True):
            if nodes * ranks >= replicas:
                return needed - -replicas // ranks
            needed, replicas = needed + nodes, replicas - nodes * ranks
        return needed

    def _best_domain(self, level: int, replicas: int) -> str | None:
        best: tuple[int, int, str] | None = None
        for domain, counts in self._groups.domains[level].items():
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
            amount = self._groups.amount_by_node.get(number, -1)
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

    def _neighbours(
        self, number: int, ranks: int, ranks_by_domain: dict[tuple[int, str], int]
    ) -> list[tuple[int, str]]:
        """For each level, how roomy the node's domain is, as a sort key: most ranks first, then by name."""
        keys: list[tuple[int, str]] = []
        for index, level in enumerate(self._capacity.levels):
            domain = level.shared_by_node[number]
            if domain is None:
                keys.append((-ranks, ""))
                continue
            if (index, domain) not in ranks_by_domain:
                ranks_by_domain[index, domain] = self._ranks_in(self._groups.domains[index][domain])
            keys.append((-ranks_by_domain[index, domain], domain))
        return keys

    def _lined_up(self, chosen: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Order nodes so that those of one domain are neighbours at every level, domains by their first node."""
        first_by_level: tuple[dict[str, int], ...] = tuple({} for _ in self._capacity.levels)
        keyed: list[tuple[list[int], int, int]] = []
        for sort_key, (number, ranks) in enumerate(chosen):
            path = [
                sort_key if (domain := level.shared_by_node[number]) is None else first.setdefault(domain, sort_key)
                for level, first in zip(self._capacity.levels, first_by_level, strict=True)
            ]
            keyed.append(([*path, sort_key], number, ranks))
        return [(number, ranks) for _, number, ranks in sorted(keyed)]
