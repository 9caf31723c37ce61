"""A monitoring group for every pod, with all its threads, so that traffic is known by pod.

New threads of a throttled pod are collected in every window, those of other pods in turns. Children of a moved thread
are born into its group, so only threads of an exec or a restart are missing meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from coda_agent.cgroups import Layout, PodCgroup, threads_of
from coda_agent.host import Files
from coda_agent.resctrl.groups import GroupOutcome, Groups

TURN_WINDOWS = 10  # windows in which the threads of every pod are collected once
RETRY_WINDOWS = 60  # windows until a group that was not available is tried again

NOT_MEASURED: Mapping[GroupOutcome, str] = {
    GroupOutcome.EXHAUSTED: "the hardware has no free monitoring id",
    GroupOutcome.RETRY: "the hardware still clears the monitoring ids that are free",
}


class PodGroups:
    """Keeps the groups of this node's pods. Never raises: a failure is one sentence, and is tried again."""

    def __init__(self, files: Files, layout: Layout, groups: Groups) -> None:
        self._files = files
        self._layout = layout
        self._groups = groups
        self._window = 0
        self._not_before: dict[str, int] = {}  # by pod: the window in which to try again

    def refresh(self, cgroups: Mapping[str, PodCgroup], uncounted: Collection[str] = ()) -> tuple[str, ...]:
        """Give every pod of `cgroups` its group, and remove groups of pods that are gone. Call once per window.

        `uncounted`: pods whose group lost its counter; they get a new one, or lose the group."""
        self._window += 1
        try:
            placed = self._groups.grouped_pods()
        except OSError as error:
            return (f"the bandwidth groups of pods cannot be listed: {error}",)
        problems: list[str] = []
        for uid in sorted((placed.free | placed.throttled) - cgroups.keys()):
            problems += self._attempt(uid, partial(self._groups.remove_pod, uid))
        self._not_before = {uid: window for uid, window in self._not_before.items() if uid in cgroups}
        for number, (uid, at) in enumerate(sorted(cgroups.items())):
            has_group = uid not in uncounted and (uid in placed.free or uid in placed.throttled)
            if not has_group and self._not_before.get(uid, 0) <= self._window:
                problems += self._attempt(uid, partial(self._groups.add_pod, uid))
            elif not has_group or (uid not in placed.throttled and (number + self._window) % TURN_WINDOWS):
                continue
            problems += self._attempt(uid, partial(self._collect_threads, uid, at))
        return tuple(problems)

    def _collect_threads(self, uid: str, at: PodCgroup) -> GroupOutcome:
        outcome = self._groups.collect_threads(uid, lambda: threads_of(self._files, self._layout, at.path))
        return GroupOutcome.DONE if outcome is GroupOutcome.GONE else outcome

    def _attempt(self, uid: str, step: Callable[[], GroupOutcome]) -> tuple[str, ...]:
        try:
            outcome = step()
        except OSError as error:
            return (f"the bandwidth of pod {uid} cannot be followed: {error}",)
        if outcome in NOT_MEASURED:
            self._not_before[uid] = self._window + RETRY_WINDOWS
            return (f"the bandwidth of pod {uid} is not measured: {NOT_MEASURED[outcome]}",)
        return ()
