"""Finding nodes for a gang, with every answer kept that another gang can share. What must not live here: reasons.

Many waiting jobs ask for the same thing, so the work is done per distinct demand (which nodes accept it) and per
distinct kind of rank (which nodes have room), and both follow the room as it changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from coda.model.constraints import NodeConstraints, key_of_constraints
from coda.model.job import Job
from coda.model.resources import key_of_amount
from coda.model.world import Node
from coda.nodes.candidates import Candidates, Score
from coda.nodes.eligibility import Exclusion, exclusion, is_blocked
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.node_groups import NodeGroups
from coda.policy.config import PolicyConfig


class EligibleNodes:
    """Which nodes, by number, accept a demand. One per distinct demand."""

    def __init__(self, demand: NodeConstraints) -> None:
        self.demand = demand
        self.accepting: set[int] = set()  # now
        self.matching: set[int] = set()  # whenever their state allows
        self.excluded: Counter[Exclusion] = Counter()  # how many nodes each part of the demand keeps out

    def judge(self, number: int, node: Node, sign: int = 1) -> None:
        """Count a node, or with `sign` -1 count it no more: the node must then be as it was."""
        reason = exclusion(self.demand, node)
        if reason is not None:
            self.excluded[reason] += sign
            return
        (self.matching.add if sign > 0 else self.matching.discard)(number)
        if not is_blocked(self.demand, node):
            (self.accepting.add if sign > 0 else self.accepting.discard)(number)


class RankClass:
    """Gangs that differ in their number of ranks only: one rank's request, the nodes it may go to, and how it packs."""

    def __init__(
        self, job: Job, match: EligibleNodes, pool: NodeGroups, within: int | None, candidates: Candidates
    ) -> None:
        self.request = job.request
        self.avoid = job.avoid
        self.match = match
        self.pool = pool
        self.within = within
        self.candidates = candidates

    def avoided(self) -> frozenset[int]:
        """The accepting nodes these gangs keep away from for a while."""
        if not self.avoid:
            return frozenset()
        number_by_name = self.pool.room.number_by_name
        numbers = (number_by_name.get(name) for name in self.avoid)
        return frozenset(number for number in numbers if number is not None and number in self.match.accepting)


class NodeSearch:
    """All searches over one room. What it keeps is right for as long as nodes change by `replace_node` only."""

    def __init__(self, room: FreeCapacity, config: PolicyConfig, score: Score | None = None) -> None:
        self.room = room
        self._score = score  # of nodes for gangs of one rank
        self._config = config
        self._match_by_demand: dict[Hashable, EligibleNodes] = {}
        self.kinds: dict[Hashable, RankClass] = {}  # every kind of gang asked for
        self.pools: dict[tuple[EligibleNodes, int | None, frozenset[str], Hashable], NodeGroups] = {}  # what they share
        self.sides: Mapping[Hashable, frozenset[int]] = {}  # parts of the cluster that jobs can be kept to
        self._empties_by_match: dict[tuple[EligibleNodes, int | None], Counter[tuple[str, int]]] = {}
        self._nodes_by_label: dict[str, dict[str, list[int]]] = {}

    def kind(self, job: Job, side: Hashable = None) -> RankClass:
        """What is known about gangs like this one, on one side's nodes where given. An unknown level counts as none."""
        return self._kind(job, None if job.within is None else self._config.level_index(job.within), side)

    def kind_anywhere(self, job: Job) -> RankClass:
        """The same, were the job content with any domains."""
        return self._kind(job, None, None)

    def replace_node(self, number: int, node: Node) -> bool:
        """A node changed in anything but its name and labels; what is free on it is put separately.

        True when it matches a demand now that it did not match, or the other way round."""
        before, moved = self.room.nodes[number], False
        for match in self._match_by_demand.values():
            matched = number in match.matching
            match.judge(number, before, -1)
            match.judge(number, node)
            moved |= matched != (number in match.matching)
        self.room.replace_node(number, node)
        self._empties_by_match.clear()
        for (match, within, avoid, side), pool in self.pools.items():
            pool.refresh()
            belongs = number in match.accepting and self._allows(number, within, avoid, side)
            if belongs and number not in pool.amount_by_node:
                pool.add(number)
            elif not belongs and number in pool.amount_by_node:
                pool.remove(number)
        return moved

    def ranks_when_empty(self, kind: RankClass, level: int | None) -> int:
        """How many ranks the matching nodes hold without any pod; with a level, the roomiest of its domains."""
        ranks_by_amount: dict[int, int] = {}
        ranks_by_domain: dict[str, int] = {}
        for (domain, amount), nodes in self._empties(kind.match, level).items():
            ranks = ranks_by_amount.get(amount)
            if ranks is None:
                ranks = ranks_by_amount[amount] = kind.request.times_in(self.room.amounts[amount])
            ranks_by_domain[domain] = ranks_by_domain.get(domain, 0) + ranks * nodes
        return max(ranks_by_domain.values(), default=0)

    def _kind(self, job: Job, within: int | None, side: Hashable) -> RankClass:
        match = self._match(job.demand)
        score = self._score if job.replicas == 1 else None
        packs = job.replicas == 1 and job.request.gpus <= 1
        pool = self._pool(match, within, job.avoid, side)
        key = (pool, packs, score is not None, key_of_amount(job.request))
        kind = self.kinds.get(key)
        if kind is None:
            candidates = Candidates(pool, job.request, packs=packs, score=score)
            kind = self.kinds[key] = RankClass(job, match, pool, within, candidates)
        return kind

    def _match(self, demand: NodeConstraints) -> EligibleNodes:
        """Which nodes accept the demand. O(nodes) per distinct demand, fewer with a selector."""
        key = key_of_constraints(demand)
        match = self._match_by_demand.get(key)
        if match is None:
            match = self._match_by_demand[key] = EligibleNodes(demand)
            asked = self._nodes_selected(demand)
            if len(asked) < len(self.room.nodes):
                match.excluded[Exclusion.SELECTOR] = len(self.room.nodes) - len(asked)
            for number in asked:
                match.judge(number, self.room.nodes[number])
        return match

    def _empties(self, match: EligibleNodes, level: int | None) -> Counter[tuple[str, int]]:
        """How many matching nodes of each allocatable amount each domain has; one nameless domain without a level."""
        empties = self._empties_by_match.get((match, level))
        if empties is None:
            domain_by_node = None if level is None else self.room.levels[level].domain_by_node
            domains = ((number, domain_by_node[number] if domain_by_node else "") for number in match.matching)
            whole = self.room.whole_amounts
            empties = Counter((domain, whole[number]) for number, domain in domains if domain is not None)
            self._empties_by_match[match, level] = empties
        return empties

    def _pool(self, match: EligibleNodes, within: int | None, avoid: frozenset[str], side: Hashable) -> NodeGroups:
        """The accepting nodes, without those to avoid and, for a required level, those in no domain of it."""
        key = (match, within, avoid, side)
        pool = self.pools.get(key)
        if pool is None:
            numbers = (number for number in match.accepting if self._allows(number, within, avoid, side))
            pool = self.pools[key] = NodeGroups(self.room, numbers)
        return pool

    def _allows(self, number: int, within: int | None, avoid: frozenset[str], side: Hashable) -> bool:
        if side is not None and number not in self.sides[side]:
            return False
        if avoid and self.room.nodes[number].name in avoid:
            return False
        return within is None or self.room.levels[within].domain_by_node[number] is not None

    def _nodes_selected(self, demand: NodeConstraints) -> list[int]:
        """The nodes with the selector's rarest label; all without a selector."""
        groups = [self._labelled(key).get(value, []) for key, value in demand.selector.items()]
        return min(groups, key=len, default=None) or ([] if groups else list(range(len(self.room.nodes))))

    def _labelled(self, key: str) -> dict[str, list[int]]:
        numbers_by_value = self._nodes_by_label.get(key)
        if numbers_by_value is None:
            numbers_by_value = self._nodes_by_label[key] = {}
            for number, node in enumerate(self.room.nodes):
                value = node.labels.get(key)
                if value is not None:
                    numbers_by_value.setdefault(value, []).append(number)
        return numbers_by_value
