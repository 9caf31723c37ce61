"""Where a gang goes: the fewest nodes, in the tightest domain that holds it.

A gang that one node holds goes to the fullest such node, so that emptier nodes stay whole for larger gangs. For any
other gang, nodes are ranked by how many of its ranks they hold, most first. Filling them in this order takes the fewest
nodes. Ties: nodes of one GPU product, because a gang is as fast as its slowest rank; then least left over. Nodes that a
taint asks to leave alone come last of those with as many ranks, GPUs and cores left: before memory decides, because
what nodes of one model report of it differs. So do domains with most of them, before the name decides.
Source: Philly (Jeon et al., ATC 2019), section 2.1, for gangs of several nodes; the fullest node and ties are our
choice (docs/decisions/0049).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from typing import Any

from coda.model.resources import Resources
from coda.nodes.node_groups import Counts, GroupMove, NodeGroups

Key = tuple[tuple[Any, ...], tuple[Any, ...]]
"""How good a free amount is for the gang, best first: by ranks or a score, GPUs and cores; then by memory and the rest,
where no taint decides before. Distinct amounts have distinct keys; but for gangs of several ranks the same amount on
nodes of different sizes has one."""

Score = Callable[[Resources, Resources, Resources], tuple[float, ...]]
"""How good a node is for a gang of one rank, lowest first; from its request, what is free there and the node's size.
Ties: fewest GPUs, cores, memory and pods free."""

_Ranked = tuple[int, list[tuple[int, int, str]], tuple[Any, ...], bool, tuple[Any, ...], int]
"""A node's place among those that a gang is spread over, best first; less its ranks in front, its number at the end."""


class Candidates:
    """The nodes with enough free capacity for at least one rank, best first, kept up to date."""

    def __init__(self, groups: NodeGroups, request: Resources, *, packs: bool, score: Score | None = None) -> None:
        self._all_ranks = self._all_nodes = 0  # as `ranks` and `nodes`
        self._capacity = groups.capacity
        self._groups = groups
        self._request = request
        self._packs = packs
        self._score = score
        self._tells_products = groups.capacity.products is not None and request.gpus > 0
        self._ranks: dict[int, int] = {}  # that fit into an amount
        self._keys: list[tuple[Key, int]] = []  # amounts that hold a rank, best first; some may have no node left
        self._refused_from: int | None = None  # this many ranks, or more, do not fit until a node gains
        self._place = self._place_of_sums = -1
        self.refresh()

    @property
    def ranks(self) -> int:
        """How many ranks they hold together. Call `refresh` first; same cost."""
        self._sum_up()
        return self._all_ranks

    @property
    def nodes(self) -> int:
        """How many nodes hold at least one rank. Call `refresh` first; same cost."""
        self._sum_up()
        return self._all_nodes

    def refresh(self) -> None:
        """Read what changed since the last call. O(nodes that changed), or O(amounts) if these are fewer."""
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
        """False if this many ranks certainly do not fit. Call `refresh` first."""
        if replicas == 1:
            return bool(self._keys)
        return replicas <= self.ranks and (self._refused_from is None or replicas < self._refused_from)

    def fits(self, replicas: int, within: int | None) -> bool:
        """True if `place` would return nodes. Call `refresh` first. O(1) but for a gang that needs one domain."""
        if not self.may_hold(replicas):
            return False
        if within is None or replicas == 1 or self._ranks[self._keys[0][1]] >= replicas:
            return True
        levels = range(within, len(self._capacity.levels))
        domains = (counts for level in levels for counts in self._groups.domains[level].values())
        return any(self._ranks_in(counts) >= replicas for counts in domains)

    def place(self, replicas: int, within: int | None) -> list[tuple[int, int]] | None:
        """Return nodes and how many ranks each gets, in rank order; None if the gang does not fit.

        First choice: the fullest node that holds the gang; ties: by name. Second: one domain of the narrowest level
        that holds it; ties: fewest nodes, then these of one GPU product, then most ranks, then by name. Third: fewest
        nodes anywhere, unless `within` (a level's index) forbids it. Disliked nodes come last before memory decides,
        domains with most of them before the name does. O(amounts) for several ranks on one node or in one domain,
        O(n log n) in the nodes that the gang may be spread over."""
        if not self.may_hold(replicas):
            return None
        shares = self._place_whole(replicas, within)
        if shares is None:
            self._refused_from = replicas
        return shares

    def _place_whole(self, replicas: int, within: int | None) -> list[tuple[int, int]] | None:
        best = self._keys[0][1]
        if self._ranks[best] >= replicas:
            amount = self._first_liked() if replicas == 1 else self._fullest(replicas)
            return [(self._groups.first_node(amount), replicas)]
        if replicas == 1:
            return None
        for level in range(len(self._capacity.levels) - 1, -1 if within is None else within - 1, -1):
            domain = self._best_domain(level, replicas)
            if domain is not None:
                return self._spread(self._capacity.levels[level].nodes_by_domain[domain], replicas)
        return self._spread(self._groups.amount_by_node, replicas) if within is None else None

    def _first_liked(self) -> int:
        """Return the best amount; of those that differ from it only in memory and less, the first with a node that is
        not disliked."""
        groups, (best, amount) = self._groups, self._keys[0]
        if not groups.disliked:
            return amount
        for key, rival in self._keys:
            if key[0] != best[0]:
                break
            if rival in groups.nodes_by_amount and groups.first_node(rival) not in groups.disliked:
                return rival
        return amount

    def _fullest(self, replicas: int) -> int:
        """Return the amount with least left over among those that hold this many ranks; there must be one.

        The same is left over on nodes of different sizes: then that of the first node by name."""
        nodes_by_amount, ranks_by_amount = self._groups.nodes_by_amount, self._ranks
        disliked = self._groups.disliked
        fullest = self._keys[0]
        for entry in self._keys:
            key, amount = entry
            ranks = ranks_by_amount[amount]
            if ranks < replicas:
                break  # they come by ranks, most first
            if amount not in nodes_by_amount:
                continue
            is_as_full = key[0] == fullest[0][0] if disliked else key == fullest[0]
            if ranks < ranks_by_amount[fullest[1]] or (is_as_full and self._tie(entry) < self._tie(fullest)):
                fullest = entry
        return fullest[1]

    def _tie(self, entry: tuple[Key, int]) -> tuple[bool, tuple[Any, ...], int]:
        """What decides between amounts with as many ranks, GPUs and cores left."""
        (_, rest), amount = entry
        number = self._groups.first_node(amount)
        return number in self._groups.disliked, rest, number

    def most_ranks_in_one_domain(self, level: int) -> int:
        """Return how many ranks the best domain of a level holds. Every node must be in one. 0 without any."""
        in_domains = (self._ranks_in(counts) for counts in self._groups.domains[level].values())
        on_nodes = (self._ranks_of(amount) for amount in self._groups.nodes_by_amount)
        return max(max(on_nodes, default=0), max(in_domains, default=0))

    def _sum_up(self) -> None:
        """Update the sums, which only gangs of several ranks ask for."""
        moves, nodes_by_amount, place = self._groups.moves, self._groups.nodes_by_amount, self._place_of_sums
        if place == moves.end:
            return
        self._place_of_sums = moves.end
        news = moves.since(place) if place >= 0 and moves.end - place <= len(nodes_by_amount) else None
        if news is not None:
            for move in news:
                self._count(move)
            return
        held = [(self._ranks_of(amount), nodes) for amount, nodes in nodes_by_amount.items()]
        self._all_ranks = sum(ranks * nodes for ranks, nodes in held)
        self._all_nodes = sum(nodes for ranks, nodes in held if ranks)
        self._refused_from = None

    def _count(self, move: GroupMove) -> None:
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
        """Find how good a free amount is."""
        ranks = self._ranks[amount] = self._times_in(amount)
        if ranks:
            insort(self._keys, (self._key(amount, self._capacity.amounts[amount], ranks), amount))

    def _key(self, amount: int, free: Resources, ranks: int) -> Key:
        rest = free if self._packs or self._score else free - self._request * ranks
        others = tuple(sorted(item for item in rest.other.items() if item[1])) if rest.other else ()
        small = (rest.memory_bytes, rest.pods)
        if self._score is None:
            large = (rest.gpus, rest.cpu_m) if self._packs else (-ranks, rest.gpus, rest.cpu_m)
            return large, (small, others)
        size = self._capacity.sizes[amount]
        whole = (size.gpus, size.cpu_m, size.memory_bytes, size.pods, tuple(sorted(size.other.items())))
        return (self._score(self._request, free, size), rest.gpus, rest.cpu_m), (small, others, whole)

    def _ranks_in(self, counts: Counts) -> int:
        return sum(self._ranks_of(amount) * nodes for amount, nodes in counts.items())

    def _nodes_needed(self, counts: Counts, replicas: int) -> int:
        """The fewest nodes of a domain that hold this many ranks; it must hold them."""
        needed = 0
        held = ((self._ranks_of(amount), nodes) for amount, nodes in counts.items())
        for ranks, nodes in sorted(held, reverse=True):
            if nodes * ranks >= replicas:
                return needed - -replicas // ranks
            needed, replicas = needed + nodes, replicas - nodes * ranks
        return needed

    def _best_domain(self, level: int, replicas: int) -> str | None:
        found: list[tuple[int, int, int, str]] = []
        for domain, counts in self._groups.domains[level].items():
            ranks = self._ranks_in(counts)
            if ranks >= replicas:
                disliked = self._disliked_in(level, domain)
                found.append((self._nodes_needed(counts, replicas), -ranks, disliked, domain))
        best = min(found, default=None)
        if best is not None and self._tells_products:
            alike = sorted([one for one in found if one[0] == best[0]])
            best = next((one for one in alike if self._is_of_one_product(level, one[3], replicas, one[0])), best)
        return None if best is None else best[3]

    def _is_of_one_product(self, level: int, domain: str, replicas: int, nodes: int) -> bool:
        """True if nodes of one product in this domain hold the gang, so many of them."""
        return any(
            self._ranks_in(counts) >= replicas and self._nodes_needed(counts, replicas) == nodes
            for counts in self._groups.domains_by_product[level][domain].values()
        )

    def _disliked_in(self, level: int, domain: str) -> int:
        return self._groups.count_disliked(self._capacity.levels[level].nodes_by_domain[domain])

    def _spread(self, numbers: Iterable[int], replicas: int) -> list[tuple[int, int]]:
        """Fill the fewest of these nodes. Ties: domains that hold most ranks. Nodes of one domain stand together."""
        ranked = self._ranked(numbers)
        chosen = _first_of(ranked, replicas)
        if self._tells_products:
            chosen = self._of_one_product(ranked, chosen, replicas)
        shares: list[tuple[int, int]] = []
        for one in chosen:
            shares.append((one[5], min(-one[0], replicas)))
            replicas += one[0]
        return self._lined_up(shares)

    def _ranked(self, numbers: Iterable[int]) -> list[_Ranked]:
        ranked: list[_Ranked] = []
        disliked = self._groups.disliked
        key_by_amount = {amount: key for key, amount in self._keys}
        known: dict[tuple[int, str], tuple[int, int, str]] = {}
        for number in numbers:
            amount = self._groups.amount_by_node.get(number, -1)
            if amount in key_by_amount:
                ranks = self._ranks[amount]
                neighbours = self._neighbours(number, ranks, known)
                large, small = key_by_amount[amount]
                ranked.append((-ranks, neighbours, large, number in disliked, small, number))
        return sorted(ranked)

    def _of_one_product(self, ranked: list[_Ranked], chosen: list[_Ranked], replicas: int) -> list[_Ranked]:
        """Return nodes of one product, if these are as few and of as few domains as those chosen; else the latter.

        Of several products the one with the best nodes."""
        products = self._capacity.products
        if products is None or len({products[one[5]] for one in chosen}) == 1:
            return chosen
        by_product: dict[str, list[_Ranked]] = {}
        for one in ranked:
            by_product.setdefault(products[one[5]], []).append(one)
        rivals: list[list[_Ranked]] = []
        for nodes in by_product.values():
            rival = _first_of(nodes, replicas)
            if rival and len(rival) == len(chosen) and self._crosses_no_more(rival, chosen):
                rivals.append(rival)
        return min(rivals) if rivals else chosen

    def _crosses_no_more(self, rival: list[_Ranked], chosen: list[_Ranked]) -> bool:
        """True if at each level the nodes are of as few domains. A node that shares none is one."""
        for level in self._capacity.levels:
            domains = [{level.shared_by_node[one[5]] or one[5] for one in nodes} for nodes in (rival, chosen)]
            if len(domains[0]) > len(domains[1]):
                return False
        return True

    def _neighbours(
        self, number: int, ranks: int, known: dict[tuple[int, str], tuple[int, int, str]]
    ) -> list[tuple[int, int, str]]:
        """For each level, a sort key of the node's domain: most ranks first, then fewest disliked nodes, then by name.

        `known`: the keys found before, by level and domain."""
        keys: list[tuple[int, int, str]] = []
        for index, level in enumerate(self._capacity.levels):
            domain = level.shared_by_node[number]
            if domain is None:
                keys.append((-ranks, 0, ""))
                continue
            if (index, domain) not in known:
                held = self._ranks_in(self._groups.domains[index][domain])
                known[index, domain] = (-held, self._disliked_in(index, domain), domain)
            keys.append(known[index, domain])
        return keys

    def _lined_up(self, chosen: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Order nodes so that those of one domain stand together at every level, domains by their first node."""
        first_by_level: tuple[dict[str, int], ...] = tuple({} for _ in self._capacity.levels)
        keyed: list[tuple[list[int], int, int]] = []
        for sort_key, (number, ranks) in enumerate(chosen):
            path = [
                sort_key if (domain := level.shared_by_node[number]) is None else first.setdefault(domain, sort_key)
                for level, first in zip(self._capacity.levels, first_by_level, strict=True)
            ]
            keyed.append(([*path, sort_key], number, ranks))
        return [(number, ranks) for _, number, ranks in sorted(keyed)]


def _first_of(ranked: list[_Ranked], replicas: int) -> list[_Ranked]:
    """Return the first of these nodes that hold a gang together; none if all do not."""
    for place, one in enumerate(ranked, start=1):
        replicas += one[0]
        if replicas <= 0:
            return ranked[:place]
    return []
