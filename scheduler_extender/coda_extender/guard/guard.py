"""The guard: verdicts on pods and nodes. It remembers which foreign pods are in flight, and which binds kube-scheduler
may not know of.

Reasons are constants. kube-scheduler writes them to the pod, and a reason that changes would wake the pod at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from itertools import filterfalse
from typing import Final

from coda.model import NOTHING, JobId, Resources
from coda.placements import InFlight, Rank, kept_for_gangs, planned_node
from coda.placements.filter_rules import (
    MAX_SCORE,
    Evictable,
    best_candidates,
    in_flight_by_node,
    may_evict,
    without_ports,
)
from coda_extender.guard.cluster_use import NodeUse
from coda_extender.guard.in_flight import Clock, InFlightPods
from coda_extender.guard.node_capacity import NodeCapacity
from coda_extender.guard.passed_ranks import PassedRank, PassedRanks
from coda_extender.guard.unconfirmed_binds import ShownVersions, UnconfirmedBinds
from coda_extender.protocol import Answer, Preemption, Question
from coda_kube.api.watch_cache import version_of
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import Pod

NOT_LEADER: Final = "coda: not the leader"
NO_PLAN: Final = "coda: no released plan for this pod"
OTHER_NODE: Final = "coda: the plan of this pod names another node"
WITHHELD: Final = "coda: capacity is withheld for a gang"
TAKEN: Final = "coda: a pod bound there has taken the room"
OUT_OF_TOUCH: Final = "coda: not in touch with the API server"
BOUND: Final = "coda: this pod is bound already"

NOMINATED_S: Final = 3600.0
"""A new leader counts a pod so long on the node that its status names. Our choice: kube-scheduler waits for a volume
for ten minutes by default, and asks the filter again then. Whoever may write the status can name any node."""

_MOST_OFFERED: Final = 5000  # nodes, to all pods in flight together: counting them takes below a millisecond


class Guard:
    """Answers filter, prioritize and preempt. `ExtenderCluster` tells it of every change.

    `on_settled` is called when a foreign pod leaves flight. `in_touch`: whether changes arrive as they happen."""

    def __init__(
        self,
        state: ClusterState,
        *,
        in_flight_limit_s: float,
        clock: Clock,
        on_settled: Callable[[], None],
        in_touch: Callable[[], bool] = lambda: True,
    ) -> None:
        self.in_flight = InFlightPods(clock, on_settled)
        self._state = state
        self._capacity = NodeCapacity(state)
        self._passed_ranks = PassedRanks(clock)
        self._binds = UnconfirmedBinds(clock)
        self._shown = ShownVersions()
        self._limit_s = in_flight_limit_s
        self._in_touch = in_touch

    def filter(self, question: Question) -> Answer:
        """The nodes that the pod may take: all of them, or the best if there are many and the pod has no wishes.

        A foreign pod that passes is in flight from now on."""
        pod = question.pod
        self._binds.note_question(self._shown.version_of(pod.uid, question.pod_version))
        known = self._state.pod_by_id.get(pod.id)
        if known is not None and known.uid != pod.uid:
            known = None
        if known is not None and known.node is not None:
            return _only(known.node, question, BOUND)  # the answer to its binding was lost
        if pod.member is not None:
            rank = known or pod  # as the API server shows it, where it does
            node = planned_node(self._state.job_but_for_ranks(pod.member.job), _rank_of(rank))
            if node is not None and node in question.names:
                passed = PassedRank(pod=rank, node=node, version=question.pod_version)
                self._passed_ranks.add(passed, pod.member.job, limit_s=self._limit_s)
            return _only(node, question, NO_PLAN if node is None else OTHER_NODE)
        if not self._in_touch():
            self._binds.note_outage()
            return Answer(passed=(), refused={}, error=OUT_OF_TOUCH)  # kube-scheduler may miss binds, too
        return self._foreign(question, is_known=known is not None)

    def scores(self, question: Question) -> dict[str, int]:
        """How much better each node is than the worst one offered, up to `MAX_SCORE`; the worst are left out.

        The best node is, for a rank, the one in its placement; for a foreign pod, a full one. kube-scheduler adds these
        scores to its own, and nothing for a node that is left out: only differences matter. A foreign pod's own
        preferences weigh more: then the best node is one better than any other, and for a pod without GPUs only a node
        without free ones is."""
        member = question.pod.member
        if member is not None:
            node = planned_node(self._state.job_but_for_ranks(member.job), _rank_of(question.pod))
            return {node: MAX_SCORE} if node is not None and len(question.names) > 1 and node in question.names else {}
        self._capacity.catch_up()
        score_by_node = self._capacity.score_by_node
        try:
            scores = list(map(score_by_node.__getitem__, question.names))
        except KeyError:  # a node that was not seen yet
            scores = [score_by_node.get(name, 0) for name in question.names]
        worst, best = min(scores, default=0), max(scores, default=0)
        if worst == best:
            return {}
        if question.pod.has_preferences:
            if best < MAX_SCORE and not question.pod.request.gpus:
                return {}
            return {name: 1 for name, score in zip(question.names, scores, strict=True) if score == best}
        return {name: score - worst for name, score in zip(question.names, scores, strict=True) if score > worst}

    def cluster_use(self) -> NodeUse:
        """What becomes of the cluster's GPUs and cores now."""
        self._capacity.catch_up()
        return self._capacity.use.sums

    def evictable_nodes(self, preemption: Preemption) -> list[str]:
        """The nodes where kube-scheduler may evict the pods it chose, so that a foreign pod can go there.

        None while changes do not arrive. Pods in flight count where capacity is withheld, as in the filter."""
        pod = preemption.pod
        if pod.member is not None or not self._in_touch():
            return []
        self._capacity.catch_up()
        room_by_node = self._capacity.room_by_node
        nodes = [node for node in preemption.uids_by_node if node in room_by_node]
        others, _ = self.in_flight.others(pod.uid)
        taken = in_flight_by_node(others, self._capacity.withholding_nodes.intersection(nodes))
        return [
            node
            for node in nodes
            if may_evict(
                [self._evictable(uid, node) for uid in preemption.uids_by_node[node]],
                pod.request,
                room_by_node[node] - without_ports(taken.get(node, NOTHING)),
            )
        ]

    def free_beside_all(self, names: Collection[str]) -> dict[str, Resources]:
        """What is free on these nodes beside everything that is withheld or in flight; empty if that is not known now.

        Cost: O(names), and O(nodes offered) for the pods in flight; with too many of those it is not known either."""
        pods = self.in_flight.pods()
        if not self._in_touch() or sum([len(pod.nodes or ()) for pod in pods]) > _MOST_OFFERED:
            return {}
        self._capacity.catch_up()
        taken = in_flight_by_node(pods, names)
        known = self._capacity.free_by_node
        return {name: known[name] - taken.get(name, NOTHING) for name in names if name in known}

    def take_over(self, scheduler_names: tuple[str, ...], limit_s: float) -> None:
        """Become the replica that is asked. Count each pod that may have passed another's filter on every node."""
        self.in_flight.clear()
        self._passed_ranks.clear()
        for pod in self._state.pod_by_id.values():
            if pod.node or pod.ended or pod.gated or pod.given_up or pod.scheduler not in scheduler_names:
                continue
            if pod.member is not None:
                if pod.pinned_to is not None:
                    rank = PassedRank(pod=pod, node=pod.pinned_to, version=0)
                    self._passed_ranks.add(rank, pod.member.job, limit_s=limit_s)
                    self._count_unplanned(pod.member.job, limit_s)
            else:
                node = pod.nominated_to or pod.pinned_to
                nodes = (node,) if node else None
                in_flight = InFlight(uid=pod.uid, request=pod.request, nodes=nodes)
                lasts_s = NOMINATED_S if pod.nominated_to else limit_s
                self.in_flight.add(in_flight, version=0, limit_s=lasts_s)

    def pod_changed(self, before: Pod | None, after: Pod | None, old: Json | None, new: Json | None) -> None:
        """A pod came, changed or went; the state knows already."""
        self.in_flight.observe(before, after, old, new)
        self._passed_ranks.observe(before, after, old, new)
        if proven := self._shown.observe(before, after, new):
            self._binds.note_question(proven)
        if before is not None and after is not None and before == after:
            return
        if after is not None and after.node and not after.ended and new is not None and not _takes_alike(before, after):
            self._binds.add(after.node, version_of(new))
        for pod in (before, after):
            if pod is not None and pod.node is not None:
                self._capacity.node_changed(pod.node)
            if pod is not None and pod.member is not None:
                self._capacity.job_changed(pod.member.job)

    def outage(self) -> None:
        """The watch of pods broke: kube-scheduler may forget the binds of this moment."""
        self._binds.note_outage()

    def begin_again(self) -> None:
        """The API server's data come from a backup: versions count from elsewhere, and prove nothing of before."""
        self._binds.begin_again()
        self._shown.clear()
        self.in_flight.begin_again(self._limit_s)

    def job_changed(self, job: JobId) -> None:
        """A job came, changed or went; the state knows already."""
        self._capacity.job_changed(job)
        self._count_unplanned(job, self._limit_s)

    def node_changed(self, name: str) -> None:
        """A node came, changed or went; the state knows already."""
        self._capacity.node_changed(name)

    def _count_unplanned(self, job: JobId, limit_s: float) -> None:
        """Count the ranks that may still be bound where their placement does not withhold anything any more."""

        def is_planned(rank: PassedRank) -> bool:
            return planned_node(self._state.job_but_for_ranks(job), _rank_of(rank.pod)) == rank.node

        for rank in self._passed_ranks.take_unplanned(job, is_planned):
            self.in_flight.add(rank.in_flight, version=rank.version, limit_s=limit_s)

    def _evictable(self, uid: str, node: str) -> Evictable | None:
        """The pod of that uid, if it is bound to that node."""
        pod = self._state.pod_by_uid.get(uid)
        if pod is None or pod.node != node:
            return None
        request = NOTHING if pod.ended else without_ports(pod.request)  # the room counts no port of a bound pod
        return Evictable(request=request, is_rank=pod.member is not None)

    def _foreign(self, question: Question, *, is_known: bool) -> Answer:
        pod, names, capacity = question.pod, question.names, self._capacity
        capacity.catch_up()
        withheld = self._too_small(pod, capacity.withholding_nodes)
        if self._binds.is_doubted:
            taken = self._too_small(pod, self._binds.nodes) - withheld
        else:
            taken = (capacity.index.too_small_for(pod.request) & self._binds.nodes) - withheld
        out = withheld | taken
        passed: Sequence[str] = list(filterfalse(out.__contains__, names)) if out else names
        if not pod.has_wishes:
            passed = best_candidates(passed, capacity.score_by_node, capacity.best_nodes)
        if passed:
            in_flight = InFlight(uid=pod.uid, request=pod.request, nodes=tuple(passed))
            self.in_flight.add(in_flight, version=question.pod_version, limit_s=self._limit_s, is_seen=is_known)
        else:
            self.in_flight.settle(pod.uid)
        refused = dict.fromkeys(filter(withheld.__contains__, names), WITHHELD) if withheld else {}
        if taken:
            refused.update(dict.fromkeys(filter(taken.__contains__, names), TAKEN))
        return Answer(passed=passed, refused=refused)

    def _too_small(self, pod: Pod, nodes: Set[str]) -> set[str]:
        """Those of `nodes` where the pod does not fit once every other pod in flight has landed there."""
        if not nodes:
            return set()
        others, total = self.in_flight.others(pod.uid)
        capacity = self._capacity

        def too_small_for(request: Resources) -> set[str]:
            return capacity.index.too_small_for(request) & nodes

        return kept_for_gangs(pod.request, capacity.room_by_node, total, others, too_small_for=too_small_for)


def _only(node: str | None, question: Question, reason: str) -> Answer:
    """Pass that one node, if it was offered, and refuse all others."""
    refused = dict.fromkeys(question.names, reason)
    if node is None or refused.pop(node, None) is None:
        return Answer(passed=[], refused=refused)
    return Answer(passed=[node], refused=refused)


def _takes_alike(before: Pod | None, after: Pod) -> bool:
    """True if the pod took the same capacity of the same node before."""
    return before is not None and (before.node, before.request) == (after.node, after.request)


def _rank_of(pod: Pod) -> Rank | None:
    member = pod.member
    if member is None:
        return None
    return Rank(
        job_uid=member.job_uid,
        attempt=member.attempt,
        rank=member.rank,
        plan_id=member.plan_id,
        pinned_to=pod.pinned_to,
        request=pod.request,
    )
