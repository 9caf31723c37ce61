"""The search for nodes, with answers that gangs share.

Many waiting jobs ask for the same. So eligible nodes are found once per distinct constraints, and nodes with enough
free capacity once per class of ranks. Both are kept up to date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from coda.model.constraints import NodeConstraints, key_of_constraints
from coda.model.job import Job
from coda.model.resources import amounts_asked, key_of_amount
from coda.model.world import Node
from coda.nodes.candidates import Candidates, Score
from coda.nodes.eligibility import Exclusion, is_blocked, is_disliked, is_tainted
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.label_index import LabelIndex, count_of, numbers_in
from coda.nodes.node_groups import NodeGroups
from coda.policy.config import PolicyConfig


class EligibleNodes:
    """The nodes, by number, that accept pods with these constraints. One for each distinct constraints.

    Names and labels of the nodes must stay the same: what they exclude is found once."""

    def __init__(self, constraints: NodeConstraints, labels: LabelIndex, nodes: Sequence[Node]) -> None:
        """O(values that the constraints name + nodes they select)."""
        self.constraints = constraints
        self.accepting: set[int] = set()  # now
        self.matching: set[int] = set()  # also those that are cordoned, not ready, under pressure or being removed
        self.disliked: set[int] = set()  # of `matching`, those that come last among equals
        self.excluded: Counter[Exclusion] = Counter()  # how many nodes each part of the constraints keeps out
        selected = labels.selected(constraints.selector)
        self._allowed = selected & labels.in_terms(constraints)  # by its labels, as bits
        for cause, count in (
            (Exclusion.SELECTOR, len(nodes) - count_of(selected)),
            (Exclusion.AFFINITY, count_of(selected) - count_of(self._allowed)),
        ):
            if count:
                self.excluded[cause] = count
        for number in numbers_in(self._allowed):
            self.add(number, nodes[number])

    def add(self, number: int, node: Node) -> None:
        """Judge a node by its taints and its state, and count it."""
        if not self._allowed >> number & 1:
            return
        if is_tainted(self.constraints, node):
            self.excluded[Exclusion.TAINT] += 1
            return
        self.matching.add(number)
        if is_disliked(self.constraints, node):
            self.disliked.add(number)
        if not is_blocked(self.constraints, node):
            self.accepting.add(number)

    def remove(self, number: int) -> None:
        """Undo `add` of this node."""
        if number in self.matching:
            self.matching.remove(number)
            self.accepting.discard(number)
            self.disliked.discard(number)
        elif self._allowed >> number & 1:
            self.excluded[Exclusion.TAINT] -= 1

    def joining(self, nodes: Sequence[Node]) -> int:
        """Return how many of the nodes that match, and take no pods now, wait for the GPUs of their labels."""
        if len(self.matching) == len(self.accepting):
            return 0
        return sum([nodes[number].joins for number in self.matching - self.accepting])


class RankClass:
    """Ranks that ask for the same: their request, the nodes they may go to, and how they pack."""

    def __init__(
        self, job: Job, eligible: EligibleNodes, groups: NodeGroups, within: int | None, candidates: Candidates
    ) -> None:
        self.request = job.request
        self.asked = amounts_asked(job.request)
        self.eligible = eligible
        self.groups = groups
        self.within = within
        self.candidates = candidates


class NodeSearch:
    """All searches over one `FreeCapacity`. Its answers hold while nodes change only by `replace_node`."""

    def __init__(self, capacity: FreeCapacity, config: PolicyConfig, score: Score | None = None) -> None:
        self.capacity = capacity
        self._score = score  # of nodes for gangs of one rank
        self._config = config
        self._eligible_by_constraints: dict[Hashable, EligibleNodes] = {}
        self.rank_classes: dict[Hashable, RankClass] = {}  # every class asked for
        self.groups_by_key: dict[tuple[EligibleNodes, int | None, frozenset[str], Hashable], NodeGroups] = {}
        self.sides: Mapping[Hashable, frozenset[int]] = {}  # parts of the cluster that jobs can be limited to
        self._empties_by_eligible: dict[tuple[EligibleNodes, int | None], Counter[tuple[str, int]]] = {}
        self._labels = LabelIndex(capacity.nodes)

    def rank_class(self, job: Job, side: Hashable = None) -> RankClass:
        """Return the class of this job's ranks, on one side's nodes where given. An unknown level counts as none."""
        return self._rank_class(job, None if job.within is None else self._config.level_index(job.within), side)

    def rank_class_anywhere(self, job: Job) -> RankClass:
        """Return the class of this job's ranks without its required level."""
        return self._rank_class(job, None, None)

    def replace_node(self, number: int, node: Node) -> bool:
        """The node changed, but not its name and labels. The caller sets what is free on it.

        Return True if it now matches constraints that it did not match before, or the other way round."""
        moved, turned = False, set()
        for eligible in self._eligible_by_constraints.values():
            matched, disliked = number in eligible.matching, number in eligible.disliked
            eligible.remove(number)
            eligible.add(number, node)
            moved |= matched != (number in eligible.matching)
            if disliked != (number in eligible.disliked):
                turned.add(eligible)
        self.capacity.replace_node(number, node)
        self._empties_by_eligible.clear()
        for (eligible, within, avoid, side), groups in self.groups_by_key.items():
            groups.refresh()
            belongs = number in eligible.accepting and self._allows(number, within, avoid, side)
            if number in groups.amount_by_node and (not belongs or eligible in turned):
                groups.remove(number)
            if belongs and number not in groups.amount_by_node:
                groups.add(number)
        return moved

    def ranks_when_empty(self, rank_class: RankClass, level: int | None) -> int:
        """Return how many ranks the empty matching nodes hold; with a level, in its best domain."""
        ranks_by_amount: dict[int, int] = {}
        ranks_by_domain: dict[str, int] = {}
        for (domain, amount), nodes in self._empties(rank_class.eligible, level).items():
            ranks = ranks_by_amount.get(amount)
            if ranks is None:
                ranks = ranks_by_amount[amount] = rank_class.request.times_in(self.capacity.amounts[amount])
            ranks_by_domain[domain] = ranks_by_domain.get(domain, 0) + ranks * nodes
        return max(ranks_by_domain.values(), default=0)

    def nodes_when_empty(self, rank_class: RankClass, level: int | None) -> int:
        """Return how many of the empty matching nodes hold a rank; with a level, how many of those in its domains."""
        empties, amounts = self._empties(rank_class.eligible, level), self.capacity.amounts
        return sum(nodes for (_, amount), nodes in empties.items() if rank_class.request.fits_in(amounts[amount]))

    def _rank_class(self, job: Job, within: int | None, side: Hashable) -> RankClass:
        eligible = self._eligible(job.constraints)
        score = self._score if job.replicas == 1 else None
        packs = job.replicas == 1
        groups = self._groups(eligible, within, job.avoid, side)
        key = (groups, packs, score is not None, key_of_amount(job.request))
        rank_class = self.rank_classes.get(key)
        if rank_class is None:
            candidates = Candidates(groups, job.request, packs=packs, score=score)
            rank_class = self.rank_classes[key] = RankClass(job, eligible, groups, within, candidates)
        return rank_class

    def _eligible(self, constraints: NodeConstraints) -> EligibleNodes:
        key = key_of_constraints(constraints)
        eligible = self._eligible_by_constraints.get(key)
        if eligible is None:
            eligible = EligibleNodes(constraints, self._labels, self.capacity.nodes)
            self._eligible_by_constraints[key] = eligible  # last: judging a node may raise
        return eligible

    def _empties(self, eligible: EligibleNodes, level: int | None) -> Counter[tuple[str, int]]:
        """Count matching nodes by domain and allocatable amount; without a level the domain has no name."""
        empties = self._empties_by_eligible.get((eligible, level))
        if empties is None:
            domain_by_node = None if level is None else self.capacity.levels[level].domain_by_node
            domains = ((number, domain_by_node[number] if domain_by_node else "") for number in eligible.matching)
            whole = self.capacity.whole_amounts
            empties = Counter((domain, whole[number]) for number, domain in domains if domain is not None)
            self._empties_by_eligible[eligible, level] = empties
        return empties

    def _groups(self, eligible: EligibleNodes, within: int | None, avoid: frozenset[str], side: Hashable) -> NodeGroups:
        """The accepting nodes, less those to avoid and those in no domain of the required level."""
        key = (eligible, within, avoid, side)
        groups = self.groups_by_key.get(key)
        if groups is None:
            numbers = (number for number in eligible.accepting if self._allows(number, within, avoid, side))
            groups = self.groups_by_key[key] = NodeGroups(self.capacity, numbers, eligible.disliked)
        return groups

    def _allows(self, number: int, within: int | None, avoid: frozenset[str], side: Hashable) -> bool:
        if side is not None and number not in self.sides[side]:
            return False
        if avoid and self.capacity.nodes[number].name in avoid:
            return False
        return within is None or self.capacity.levels[within].domain_by_node[number] is not None
