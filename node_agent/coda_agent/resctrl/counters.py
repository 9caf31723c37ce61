"""How much memory bandwidth each pod and each domain uses, from the kernel's counters.

Counters only grow. A counter that shows a word, cannot be read, falls, or grows faster than any hardware has no sample
in this window; this never means 0. Source: `resctrl.rst`, and `mon_event_count` in `fs/resctrl/monitor.c` for the sum
in a control group's counter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coda_agent.host import Files
from coda_agent.resctrl.layout import FREE, MON_GROUPS, NO_GROUPS, THROTTLE, THROTTLED, inside, uid_of

EVENT = "mbm_total_bytes"
UNASSIGNED = "Unassigned"
FASTEST_BYTES_PER_S = 4e12  # more than any domain has; a larger jump is a counter that came back


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTraffic:
    """Bandwidth in one window, bytes/s by domain; None: no sample.

    `uncounted`: pods whose group has no counter, for `Groups.add_pod`."""

    by_pod: Mapping[str, Mapping[int, float | None]]
    totals: Mapping[int, float | None]
    uncounted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """Everything read at one time: bytes by pod and domain, the sum of control groups by domain, and all groups."""

    at_s: float
    pods: Mapping[tuple[str, int], int | None] = field(default_factory=dict)
    totals: Mapping[int, int | None] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    uncounted: frozenset[str] = frozenset()


class TrafficMeter:
    """The rates of one resctrl tree; remembers the counters of the last window."""

    def __init__(self, files: Files, domains: tuple[int, ...]) -> None:
        self._tree = files.resctrl
        self._domains = domains
        self._before: _Counts | None = None

    def sample(self, now_s: float) -> MemoryTraffic:
        """Return the rates since the last call; the first call has no sample. Never raises.

        `now_s`: from a clock that does not jump. Cost: one file per domain for every pod and control group."""
        now = self._counts(now_s)
        before, self._before = self._before, now
        by_pod: dict[str, dict[int, float | None]] = {}
        for (uid, domain), count in now.pods.items():
            past = None if before is None else before.pods.get((uid, domain))
            by_pod.setdefault(uid, {})[domain] = _rate(past, count, now, before)
        return MemoryTraffic(by_pod=by_pod, totals=_totals(before, now), uncounted=now.uncounted)

    def _counts(self, now_s: float) -> _Counts:
        children = self._children()
        pods: dict[tuple[str, int], int | None] = {}
        uncounted: set[str] = set()
        silent: set[int] = set()
        for place, control in ((FREE, ""), (THROTTLED, THROTTLE)):
            for name in children.get(control, ()):
                uid = uid_of(name)
                for domain in self._domains if uid is not None else ():
                    text = self._text(f"{place}/{name}", domain)
                    pods[uid or "", domain] = count = number_in(text)
                    if count is None:
                        silent.add(domain)
                    if text == UNASSIGNED:
                        uncounted.add(uid or "")
        totals = {domain: None if domain in silent else self._sum(children, domain) for domain in self._domains}
        groups = frozenset({*children, *(name for names in children.values() for name in names)})
        return _Counts(at_s=now_s, pods=pods, totals=totals, groups=groups, uncounted=frozenset(uncounted))

    def _children(self) -> Mapping[str, tuple[str, ...]]:
        """The names below every control group. Files that newer kernels have beside the groups do not count."""
        names = ("", *(name for name in self._names("") if name not in NO_GROUPS))
        found: dict[str, tuple[str, ...]] = {}
        for control in names:
            try:
                found[control] = self._tree.listdir(inside(control, MON_GROUPS))
            except NotADirectoryError:
                continue
            except OSError:
                found[control] = ()
        return found

    def _sum(self, controls: Iterable[str], domain: int) -> int | None:
        """The sum over control groups; a control group's counter contains its children's. None: one has no number."""
        counts = [number_in(self._text(control, domain)) for control in controls]
        return sum(count or 0 for count in counts) if None not in counts else None

    def _text(self, group: str, domain: int) -> str:
        """What the counter says; empty if it cannot be read."""
        try:
            path = inside(group, f"mon_data/mon_L3_{domain:02}/{EVENT}")
            return self._tree.read_text(path, most_bytes=4096).strip()
        except OSError:
            return ""

    def _names(self, directory: str) -> tuple[str, ...]:
        try:
            return self._tree.listdir(directory)
        except OSError:
            return ()


def number_in(text: str) -> int | None:
    """Return the count in a counter's text; None for words and everything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


def _totals(before: _Counts | None, now: _Counts) -> Mapping[int, float | None]:
    """No sample if a group is gone or counts again from 0: its bytes are then missing in the sum."""
    if before is None or before.groups - now.groups:
        return dict.fromkeys(now.totals)
    fell = {
        domain
        for (uid, domain), count in now.pods.items()
        if count is not None and count < (before.pods.get((uid, domain)) or 0)
    }
    return {
        domain: None if domain in fell else _rate(before.totals.get(domain), count, now, before)
        for domain, count in now.totals.items()
    }


def _rate(past: int | None, count: int | None, now: _Counts, before: _Counts | None) -> float | None:
    if past is None or count is None or before is None or count < past or now.at_s <= before.at_s:
        return None
    rate = (count - past) / (now.at_s - before.at_s)
    return rate if rate <= FASTEST_BYTES_PER_S else None
