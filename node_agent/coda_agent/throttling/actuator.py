"""Carries out the core's actions and keeps them in force: bandwidth limits and pods' cores.

The wanted state is kept here and compared with the node at every call, so each step may fail, be repeated or be lost.
Every step is in the journal before it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from coda.contention import Action, Means
from coda_agent.cgroups import Layout, find_pod, threads_of
from coda_agent.host import Files, JournalEntry, UndoJournal
from coda_agent.resctrl import Groups
from coda_agent.throttling.bandwidth_limits import BandwidthLimits, LimitInForce
from coda_agent.throttling.core_limits import CoreLimits
from coda_agent.throttling.told import ThrottleKey, throttle_of

NO_MEANS: Mapping[Means, str] = {
    Means.BANDWIDTH: "this node cannot limit memory bandwidth",
    Means.CORES: "no cgroups of pods were found on this node",
}


class Actuator:
    """The throttles that this agent holds.

    Methods do not raise if the node refuses something: they return one sentence per thing that is not as wanted, and
    the next call tries again."""

    def __init__(
        self,
        *,
        files: Files,
        layout: Layout | None,
        groups: Groups | None,
        journal: UndoJournal,
        now_s: Callable[[], float],
        boot_id: str,
        domains_by_socket: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        """`groups`: None where bandwidth cannot be limited. `layout`: None where no kubelet has made cgroups.
        `domains_by_socket`: the caches in which a socket's limit is set; None: the one with its number."""

        def stamp(entry: JournalEntry) -> JournalEntry:
            return replace(entry, at_s=now_s(), boot_id=boot_id)

        def tids_of(uid: str) -> frozenset[int]:
            at = None if layout is None else find_pod(files, layout, uid)
            return frozenset() if layout is None or at is None else threads_of(files, layout, at.path)

        self._cores = None if layout is None else CoreLimits(files, layout, journal, stamp)
        self._bandwidth = None if groups is None else BandwidthLimits(groups, journal, stamp, tids_of)
        self._domains_by_socket = domains_by_socket or {}
        self._limit_by_domain: dict[int, LimitInForce] = {}
        self._cores_by_pod: dict[str, float] = {}  # by uid
        self._late: dict[ThrottleKey, Action] = {}  # failed, and tried again by `restore_lost`
        self._in_force: list[Action] = []  # of these, to be told

    def carry_out(self, action: Action) -> tuple[str, ...]:
        """Carry out one action. Doing it twice changes nothing."""
        on_bandwidth = action.means is Means.BANDWIDTH
        problems = self._carry_out_on_bandwidth(action) if on_bandwidth else self._carry_out_on_cores(action)
        self._late.pop(throttle_of(action), None)
        if problems and not action.ends:
            self._late[throttle_of(action)] = action
        return problems

    @property
    def refuses_bandwidth(self) -> bool:
        """True if there is no throttle group to be had: other programs have all classes, or it is not allowed."""
        return self._bandwidth is None or self._bandwidth.is_refused

    def restore_lost(self, present: frozenset[str]) -> tuple[str, ...]:
        """Put throttles that were lost in force again. Call once per window. Pods not in `present` are forgotten."""
        self._cores_by_pod = {uid: cores for uid, cores in self._cores_by_pod.items() if uid in present}
        self._limit_by_domain = {
            domain: replace(one, pods=one.pods & present)
            for domain, one in self._limit_by_domain.items()
            if one.pods & present
        }
        problems = () if self._bandwidth is None else self._bandwidth.apply(self._limit_by_domain)
        has_limits = self._bandwidth is not None and not problems
        problems_by_pod = self._restore_lost_cores()
        held = () if self._cores is None else self._cores.lowered_pods() - problems_by_pod.keys()
        self._late = {key: action for key, action in self._late.items() if present.intersection(action.pods)}
        self._in_force += [
            action
            for action in self._late.values()
            if (has_limits if action.means is Means.BANDWIDTH else action.pods[0] in held)
        ]
        for action in self._in_force:
            self._late.pop(throttle_of(action), None)
        return (*problems, *(sentence for found in problems_by_pod.values() for sentence in found))

    def take_late(self) -> tuple[Action, ...]:
        """Return the actions that failed at first and are in force since `restore_lost`; each once."""
        found, self._in_force = tuple(self._in_force), []
        return found

    def _carry_out_on_bandwidth(self, action: Action) -> tuple[str, ...]:
        if self._bandwidth is None:
            return (NO_MEANS[action.means],)
        for domain in self._domains_by_socket.get(action.socket, (action.socket,)):
            self._limit_by_domain.pop(domain, None)
            if not action.ends:
                self._limit_by_domain[domain] = LimitInForce(value=int(action.value), pods=frozenset(action.pods))
        return self._bandwidth.apply(self._limit_by_domain)

    def _carry_out_on_cores(self, action: Action) -> tuple[str, ...]:
        if self._cores is None:
            return (NO_MEANS[action.means],)
        (uid,) = action.pods
        if action.ends:
            self._cores_by_pod.pop(uid, None)
            return self._cores.release_pod(uid)
        self._cores_by_pod[uid] = action.value
        return self._cores.lower(uid, action.value)

    def _restore_lost_cores(self) -> Mapping[str, tuple[str, ...]]:
        """Return the sentences of the pods, by uid, whose cores are not as wanted."""
        if self._cores is None:
            return {}
        left = sorted(self._cores.lowered_pods() - self._cores_by_pod.keys())
        problems_by_pod = {uid: self._cores.release_pod(uid) for uid in left}
        for uid, cores in sorted(self._cores_by_pod.items()):
            problems_by_pod[uid] = self._cores.lower_again(uid, cores)
        return {uid: problems for uid, problems in problems_by_pod.items() if problems}
