"""The throttle group: its limit per domain, and the pods in it.

Every call compares what is wanted with what is there, and does the rest step by step, each step journalled first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coda.errors import Outage
from coda_agent.host import ChangeKind, JournalEntry, Stamp, UndoJournal
from coda_agent.resctrl import GroupOutcome, Groups

ROOT = "/"
THROTTLED = "coda-throttle"
FAILED: Mapping[GroupOutcome, str] = {
    GroupOutcome.RETRY: "the hardware is not ready for it; it will be tried again",
    GroupOutcome.EXHAUSTED: "no class of service or monitoring id is left",
    GroupOutcome.UNSUPPORTED: "this kernel or hardware cannot do it",
    GroupOutcome.GONE: "the group is gone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitInForce:
    """One domain: the limit in the hardware's unit, and the pods it is for."""

    value: int
    pods: frozenset[str]


class BandwidthLimits:
    """The throttle group of this node.

    Methods return one sentence per thing that did not go as wanted; calling again tries again."""

    def __init__(
        self,
        groups: Groups,
        journal: UndoJournal,
        stamp: Stamp,
        tids_of: Callable[[str], frozenset[int]],
    ) -> None:
        self._groups = groups
        self._journal = journal
        self._stamp = stamp
        self._tids_of = tids_of
        self.is_refused = False  # the last time, and not only for a moment
        self._rounded: dict[tuple[int, int], int] = {}  # (domain, value asked) -> what the kernel made of it

    def apply(self, limits: Mapping[int, LimitInForce]) -> tuple[str, ...]:
        """Put exactly the pods of `limits`, by domain, into the group, and limit exactly its domains.

        Without limits the group is removed. Domains are limited before pods join, and freed before pods leave."""
        try:
            if limits:
                self.is_refused = False
                outcome = self._groups.add_throttle()
                self.is_refused = outcome in (GroupOutcome.EXHAUSTED, GroupOutcome.UNSUPPORTED)
                return self._problems("the throttle group", outcome) or self._match_group(limits)
            return self._remove_group()
        except (OSError, Outage) as error:
            return (f"memory bandwidth cannot be limited as decided: {error}",)

    def _match_group(self, limits: Mapping[int, LimitInForce]) -> tuple[str, ...]:
        problems = self._set_limits(limits)
        wanted = frozenset(uid for one in limits.values() for uid in one.pods)
        throttled = self._groups.grouped_pods().throttled
        for uid in sorted(throttled - wanted):
            problems += self._leave(uid)
        for uid in sorted(wanted - throttled):
            problems += self._join(uid)
        self._close_entries_except(wanted)
        return tuple(problems)

    def _set_limits(self, limits: Mapping[int, LimitInForce]) -> list[str]:
        """A domain may go between two reads, with its last CPU."""
        now = self._groups.limits()
        unlimited = self._groups.root_limits()
        problems: list[str] = []
        for domain in sorted(now.keys() | limits.keys()):
            if domain not in unlimited:
                if domain in limits:
                    problems.append(f"memory bandwidth cannot be limited as decided: domain {domain} is not there")
            elif domain in limits:
                value = min(limits[domain].value, unlimited[domain])
                self._set_limit(domain, now.get(domain), value, unlimited[domain])
            elif now[domain] != unlimited[domain]:
                self._groups.set_limit(domain, unlimited[domain])
        for entry in self._open_entries(ChangeKind.BANDWIDTH):
            if int(entry.target) not in limits:
                self._journal.end(*entry.key)
        return problems

    def _set_limit(self, domain: int, now: int | None, value: int, unlimited: int) -> None:
        if now == self._rounded.get((domain, value), value) and self._journal.entry(ChangeKind.BANDWIDTH, str(domain)):
            return
        entry = JournalEntry(
            kind=ChangeKind.BANDWIDTH,
            target=str(domain),
            original=str(unlimited),
            replaced=str(now),
            value=str(value),
            at_s=0.0,
            boot_id="",
        )
        self._journal.begin(self._stamp(entry))
        self._rounded[domain, value] = self._groups.set_limit(domain, value)

    def _join(self, uid: str) -> tuple[str, ...]:
        entry = JournalEntry(
            kind=ChangeKind.GROUP,
            target=uid,
            original=ROOT,
            replaced=ROOT,
            value=THROTTLED,
            at_s=0.0,
            boot_id="",
            pod_uid=uid,
        )
        self._journal.begin(self._stamp(entry))
        return self._problems(f"pod {uid}", self._groups.throttle_pod(uid, lambda: self._tids_of(uid)))

    def _leave(self, uid: str) -> tuple[str, ...]:
        outcome = self._groups.release_pod(uid, lambda: self._tids_of(uid))
        if outcome is GroupOutcome.GONE:
            return ()
        return self._problems(f"pod {uid}", outcome)

    def _remove_group(self) -> tuple[str, ...]:
        limited = self._groups.limits()
        problems = self._empty_group(limited) if limited else ()
        if not problems:
            for entry in (*self._open_entries(ChangeKind.BANDWIDTH), *self._open_entries(ChangeKind.GROUP)):
                self._journal.end(*entry.key)
        return problems

    def _empty_group(self, limited: Mapping[int, int]) -> tuple[str, ...]:
        """Free every domain, let every pod leave, then remove the group."""
        unlimited = self._groups.root_limits()
        for domain in sorted(limited.keys() & unlimited.keys()):
            if limited[domain] != unlimited[domain]:
                self._groups.set_limit(domain, unlimited[domain])
        problems = [sentence for uid in sorted(self._groups.grouped_pods().throttled) for sentence in self._leave(uid)]
        return tuple(problems) or self._problems("the throttle group", self._groups.remove_throttle())

    def _close_entries_except(self, wanted: frozenset[str]) -> None:
        throttled = self._groups.grouped_pods().throttled
        for entry in self._open_entries(ChangeKind.GROUP):
            if entry.target not in wanted | throttled:
                self._journal.end(*entry.key)

    def _open_entries(self, kind: ChangeKind) -> tuple[JournalEntry, ...]:
        return tuple(entry for entry in self._journal.entries if entry.kind is kind)

    def _problems(self, what: str, outcome: GroupOutcome) -> tuple[str, ...]:
        return () if outcome is GroupOutcome.DONE else (f"{what} cannot be throttled or released: {FAILED[outcome]}",)
