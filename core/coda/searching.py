"""Finding nodes for a gang, with every answer kept that another gang of the round can share. What must not live here:
reasons.

Many waiting jobs ask for the same thing, so the work is done per distinct demand (which nodes accept it) and per
distinct kind of rank (which nodes have room), and a kind that did not fit is not tried again for as many ranks or more:
room only shrinks during a round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from coda.config import PolicyConfig
from coda.fitting import Exclusion, exclusion, is_blocked
from coda.locality import Candidates
from coda.model import Job, JobId, NodeDemand, World
from coda.pool import Pool
from coda.room import Room


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Match:
    """Which nodes, by number, accept a demand. Compared by identity: one per distinct demand of a round."""

    accepting: frozenset[int]  # now
    matching: tuple[int, ...]  # whenever their state allows; in node order
    excluded: Mapping[Exclusion, int]  # how many nodes each part of the demand keeps out


class Kind:
    """Gangs that differ in their number of ranks only: one rank's request, the nodes it may go to, and how it packs."""

    def __init__(self, job: Job, match: Match, within: int | None, candidates: Candidates) -> None:
        self.request = job.request
        self.avoid = job.avoid
        self.match = match
        self.within = within
        self.candidates = candidates
        self.refused_from: int | None = None  # so many ranks, or more, do not fit any more

    def avoided(self, room: Room) -> frozenset[int]:
        """The accepting nodes these gangs keep away from for a while."""
        if not self.avoid:
            return frozenset()
        numbers = (room.number_by_name.get(name) for name in self.avoid)
        return frozenset(number for number in numbers if number is not None and number in self.match.accepting)


class Search:
    """All searches of one round over one room."""

    def __init__(self, world: World, config: PolicyConfig) -> None:
        self.room = Room(world, config.levels)
        self._config = config
        self._match_by_demand: dict[Hashable, Match] = {}
        self._match_by_identity: dict[int, Match] = {}  # of demands, which the world keeps alive
        self._kind_by_key: dict[Hashable, Kind] = {}
        self._pool_by_key: dict[tuple[Match, int | None, frozenset[str]], Pool] = {}
        self._kind_by_job: dict[JobId, Kind] = {}
        self._empties_by_match: dict[tuple[Match, int | None], Counter[tuple[str, int]]] = {}
        self._nodes_by_label: dict[str, dict[str, list[int]]] = {}

    def nodes_for(self, job: Job) -> tuple[str, ...] | None:
        """Take room for the whole gang and return rank -> node name; None, and nothing taken, when it does not fit."""
        if job.within is not None and self._config.level_index(job.within) is None:
            return None
        kind = self.kind(job)
        if kind.refused_from is not None and job.replicas >= kind.refused_from:
            return None
        kind.candidates.refresh()
        shares = kind.candidates.place(job.replicas, kind.within)
        if shares is None:
            kind.refused_from = job.replicas
            return None
        for number, ranks in shares:
            self.room.take(number, job.request * ranks)
        return tuple(self.room.nodes[number].name for number, ranks in shares for _ in range(ranks))

    def kind(self, job: Job) -> Kind:
        """What the search knows about gangs like this one. An unknown level counts as none."""
        kind = self._kind_by_job.get(job.id)
        if kind is None:
            within = None if job.within is None else self._config.level_index(job.within)
            kind = self._kind_by_job[job.id] = self._kind(job, within)
        return kind

    def kind_anywhere(self, job: Job) -> Kind:
        """The same, were the job content with any domains."""
        return self._kind(job, None)

    def _kind(self, job: Job, within: int | None) -> Kind:
        match = self.match(job.demand)
        packs = job.replicas == 1 and job.request.gpus <= 1
        pool = self._pool(match, within, job.avoid)
        request = job.request
        other = frozenset(request.other.items()) if request.other else None
        key = (pool, packs, request.gpus, request.cpu_m, request.memory_bytes, request.pods, other)
        kind = self._kind_by_key.get(key)
        if kind is None:
            candidates = Candidates(self.room, pool, request, packs=packs)
            kind = self._kind_by_key[key] = Kind(job, match, within, candidates)
        return kind

    def match(self, demand: NodeDemand) -> Match:
        """Which nodes accept the demand. O(nodes) per distinct demand, fewer with a selector."""
        match = self._match_by_identity.get(id(demand))
        if match is None:
            key = (frozenset(demand.selector.items()), demand.terms, demand.tolerations)
            match = self._match_by_demand.get(key)
            if match is None:
                match = self._match_by_demand[key] = self._matched(demand)
            self._match_by_identity[id(demand)] = match
        return match

    def ranks_when_empty(self, kind: Kind, level: int | None) -> int:
        """How many ranks the matching nodes hold without any pod; with a level, the roomiest of its domains."""
        ranks_by_amount: dict[int, int] = {}
        ranks_by_domain: dict[str, int] = {}
        for (domain, amount), nodes in self._empties(kind.match, level).items():
            ranks = ranks_by_amount.get(amount)
            if ranks is None:
                ranks = ranks_by_amount[amount] = kind.request.times_in(self.room.amounts[amount])
            ranks_by_domain[domain] = ranks_by_domain.get(domain, 0) + ranks * nodes
        return max(ranks_by_domain.values(), default=0)

    def _empties(self, match: Match, level: int | None) -> Counter[tuple[str, int]]:
        """How many matching nodes of each allocatable amount each domain has; one nameless domain without a level."""
        empties = self._empties_by_match.get((match, level))
        if empties is None:
            domain_by_node = None if level is None else self.room.levels[level].domain_by_node
            domains = ((number, domain_by_node[number] if domain_by_node else "") for number in match.matching)
            whole = self.room.whole_amounts
            empties = Counter((domain, whole[number]) for number, domain in domains if domain is not None)
            self._empties_by_match[match, level] = empties
        return empties

    def _pool(self, match: Match, within: int | None, avoid: frozenset[str]) -> Pool:
        """The accepting nodes, without those to avoid and, for a required level, those in no domain of it."""
        key = (match, within, avoid)
        pool = self._pool_by_key.get(key)
        if pool is None:
            avoided = {self.room.number_by_name.get(name) for name in avoid}
            domain_by_node = None if within is None else self.room.levels[within].domain_by_node
            numbers = (
                number
                for number in match.accepting
                if number not in avoided and (domain_by_node is None or domain_by_node[number] is not None)
            )
            pool = self._pool_by_key[key] = Pool(self.room, numbers)
        return pool

    def _matched(self, demand: NodeDemand) -> Match:
        nodes = self.room.nodes
        asked = self._nodes_selected(demand)
        excluded: Counter[Exclusion] = Counter()
        if len(asked) < len(nodes):
            excluded[Exclusion.SELECTOR] = len(nodes) - len(asked)
        matching: list[int] = []
        accepting: list[int] = []
        for number in asked:
            reason = exclusion(demand, nodes[number])
            if reason is not None:
                excluded[reason] += 1
                continue
            matching.append(number)
            if not is_blocked(demand, nodes[number]):
                accepting.append(number)
        return Match(accepting=frozenset(accepting), matching=tuple(matching), excluded=excluded)

    def _nodes_selected(self, demand: NodeDemand) -> list[int]:
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
