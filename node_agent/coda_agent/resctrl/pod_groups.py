"""A monitoring group for every pod that is worth it, with all its threads, so that traffic is known by pod.

New threads of a throttled pod are collected in every window, those of other pods in turns. Children of a moved thread
are born into its group, so only threads of an exec or a restart are missing meanwhile. Where ids or counters are used
up, a pod that is worth twice as much takes the place of another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from coda_agent.cgroups import Layout, PodCgroup, threads_of
from coda_agent.host import Files
from coda_agent.resctrl.groups import GroupOutcome, Groups

TURN_WINDOWS = 10  # windows in which the threads of every pod are collected once
DISPLACE_WINDOWS = 5  # windows from one pod that takes another one's place to the next
RETRY_WINDOWS = 60  # windows until a group that was not available is tried again

NOT_MEASURED: Mapping[GroupOutcome, str] = {
    GroupOutcome.EXHAUSTED: "the bandwidth of some pods is not measured: no monitoring id or counter is free",
    GroupOutcome.UNSUPPORTED: "the bandwidth of some pods is not measured: groups cannot be made in resctrl",
    GroupOutcome.RETRY: "the bandwidth of some pods is not measured: the hardware still clears monitoring ids",
}
ELSEWHERE = "the bandwidth of some pods is not measured: other programs keep their threads in resctrl groups of theirs"
"""Of koordlet, NRI plugins or a runtime's classes. Threads there are left alone."""


class PodGroups:
    """Keeps the groups of this node's pods. Never raises: a failure is one sentence, and is tried again."""

    def __init__(self, files: Files, layout: Layout, groups: Groups, most: int) -> None:
        """`most`: pods that have a group at a time."""
        self._files = files
        self._layout = layout
        self._groups = groups
        self._most = most
        self._window = 0
        self._displaced_at = -DISPLACE_WINDOWS  # the window in which a pod last took another one's place
        self._not_before: dict[str, int] = {}  # by pod: the window in which to try again
        self._refused: dict[str, GroupOutcome] = {}  # by pod without a group

    @property
    def lacks(self) -> tuple[str, ...]:
        """One sentence for each reason for which a pod is not measured now, always with the same words."""
        found = {NOT_MEASURED[outcome] for outcome in self._refused.values()}
        return tuple(sorted(found | ({ELSEWHERE} if self._groups.are_held_by_others() else set())))

    def refresh(
        self, cgroups: Mapping[str, PodCgroup], worth_by_pod: Mapping[str, float], uncounted: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Give the pods of `worth_by_pod` their groups, and remove groups of all others. Call once per window.

        `uncounted`: pods whose group lost its counter; they get a new one, or lose the group."""
        self._window += 1
        try:
            placed = self._groups.grouped_pods()
        except OSError as error:
            return (f"the bandwidth groups of pods cannot be listed: {error}",)
        wanted = [uid for uid in worth_by_pod if uid in cgroups]
        wanted.sort(key=lambda uid: (-worth_by_pod[uid], uid))
        problems: list[str] = []
        for uid in sorted((placed.free - set(wanted)) | (placed.throttled - cgroups.keys())):
            problems += self._attempt(uid, partial(self._groups.remove_pod, uid))
        self._not_before = {uid: window for uid, window in self._not_before.items() if uid in wanted}
        self._refused = {uid: outcome for uid, outcome in self._refused.items() if uid in wanted}
        holders = {uid: worth_by_pod[uid] for uid in wanted if uid in placed.free or uid in placed.throttled}
        for number, uid in enumerate(wanted):
            if uid in uncounted or uid not in holders:
                free = {one: worth for one, worth in holders.items() if one in placed.free and one != uid}
                if self._not_before.get(uid, 0) > self._window and not self._may_displace(worth_by_pod[uid], free):
                    continue
                problems += self._admit(uid, worth_by_pod[uid], free, is_full=len(holders.keys() | {uid}) > self._most)
                if uid in self._refused:
                    continue
                holders = {one: worth for one, worth in holders.items() if one not in self._refused}
                holders[uid] = worth_by_pod[uid]
            elif uid not in placed.throttled and (number + self._window) % TURN_WINDOWS:
                continue
            problems += self._attempt(uid, partial(self._collect_threads, uid, cgroups[uid]))
        return (*problems, *self.lacks)

    def _admit(self, uid: str, worth: float, holders: Mapping[str, float], *, is_full: bool) -> tuple[str, ...]:
        """Give the pod a group, if need be in place of the least of `holders`: one that is worth half as much."""
        problems = () if is_full else self._attempt(uid, partial(self._groups.add_pod, uid))
        if not is_full and self._refused.get(uid) is not GroupOutcome.EXHAUSTED:
            return problems
        if not self._may_displace(worth, holders):
            self._refuse(uid, GroupOutcome.EXHAUSTED)
            return problems
        least = min(holders, key=lambda one: (holders[one], one))
        self._displaced_at = self._window
        problems += self._attempt(least, partial(self._groups.remove_pod, least))
        self._refuse(least, GroupOutcome.EXHAUSTED)
        return problems + self._attempt(uid, partial(self._groups.add_pod, uid))

    def _may_displace(self, worth: float, holders: Mapping[str, float]) -> bool:
        """Seldom, because moving all threads of two pods costs more than measuring them."""
        rested = self._window - self._displaced_at >= DISPLACE_WINDOWS
        return rested and bool(holders) and 2 * min(holders.values()) < worth

    def _collect_threads(self, uid: str, at: PodCgroup) -> GroupOutcome:
        outcome = self._groups.collect_threads(uid, lambda: threads_of(self._files, self._layout, at.path))
        return GroupOutcome.DONE if outcome is GroupOutcome.GONE else outcome

    def _attempt(self, uid: str, step: Callable[[], GroupOutcome]) -> tuple[str, ...]:
        try:
            outcome = step()
        except OSError as error:
            return (f"the bandwidth of pod {uid} cannot be followed: {error}",)
        if outcome in NOT_MEASURED:
            self._refuse(uid, outcome)
        else:
            self._refused.pop(uid, None)
        return ()

    def _refuse(self, uid: str, outcome: GroupOutcome) -> None:
        self._refused[uid] = outcome
        self._not_before[uid] = self._window + RETRY_WINDOWS
