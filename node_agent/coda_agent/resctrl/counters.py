"""How much memory bandwidth each pod and each domain uses, from the kernel's counters.

Counters only grow. A counter that shows a word, cannot be read, falls, or grows faster than any hardware has no sample
in this window; this never means 0. A domain's total is a sum of differences, one for each group. So it stays known
where groups come and go, without the last bytes of a group that is gone.

AMD without assignable counters counts some groups at a time, those that move something. A group that sleeps, or never
works on a domain, is "Unavailable" there for hours. So the total is that of all others, and only the change costs a
sample. Source: `resctrl.rst`, and `mon_event_count` in `fs/resctrl/monitor.c` for the sum in a control group's
counter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from coda_agent.host import Files
from coda_agent.resctrl.layout import MON_GROUPS, NO_GROUPS, THROTTLE, inside, uid_of

EVENT = "mbm_total_bytes"
UNASSIGNED = "Unassigned"
UNTRACKED = "Unavailable"  # the hardware does not count the group now
LASTING_WINDOWS = 60  # in a row with such words, or without, until it is said, or no more; our choice
SELDOM_COUNTED = "the bandwidth of some pods is not always measured: the hardware counts only some groups at a time"
FASTEST_BYTES_PER_S = 4e12  # more than any domain has; a larger jump is a counter that came back


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTraffic:
    """Bandwidth in one window, bytes/s by domain; None: no sample.

    A domain is not there for a pod that the hardware did not count in it in both windows. `totals` are without such
    pods. `uncounted`: pods whose group has no counter, for `Groups.add_pod`."""

    by_pod: Mapping[str, Mapping[int, float | None]]
    totals: Mapping[int, float | None]
    uncounted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """Everything read at one time, in bytes by group and domain. None: no number.

    `controls`: by control group; it counts its children, too. `children`: by monitoring group; one of the agent's has
    the same name wherever it is, one of others is known with its control group. `parents`: where each child was.
    `untracked`: the agent's children that the hardware does not count now. `idle`: the control groups that it does not
    count now, and none of their children."""

    at_s: float
    controls: Mapping[tuple[str, int], int | None] = field(default_factory=dict)
    children: Mapping[tuple[str, int], int | None] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    uncounted: frozenset[str] = frozenset()
    untracked: frozenset[tuple[str, int]] = frozenset()
    idle: frozenset[tuple[str, int]] = frozenset()


@dataclass(slots=True)
class _Lasting:
    """Something that is said once it has lasted, and no more once it is long gone."""

    windows: int = 0  # with it, less those without
    is_said: bool = False

    def remember(self, *, is_so: bool) -> None:
        self.windows = min(LASTING_WINDOWS, self.windows + 1) if is_so else max(0, self.windows - 1)
        self.is_said = self.windows == LASTING_WINDOWS or (self.is_said and self.windows > 0)


class TrafficMeter:
    """The rates of one resctrl tree; remembers the counters of the last window."""

    def __init__(self, files: Files, domains: tuple[int, ...]) -> None:
        self._tree = files.resctrl
        self._domains = domains
        self._before: _Counts | None = None
        self._silence = _Lasting()
        self._blindness = {domain: _Lasting() for domain in domains}
        self._cause_by_domain: dict[int, str] = {}  # the last one found, while totals lack

    @property
    def lacks(self) -> tuple[str, ...]:
        """Sentences: the hardware has long not counted all groups; a total has lacked for long."""
        blind = [domain for domain in self._domains if self._blindness[domain].is_said]
        return (
            *((SELDOM_COUNTED,) if self._silence.is_said else ()),
            *(f"the bandwidth of domain {domain} is not measured{self._cause_by_domain[domain]}" for domain in blind),
        )

    def sample(self, now_s: float) -> MemoryTraffic:
        """Return the rates since the last call; the first call has no sample. Never raises.

        `now_s`: from a clock that does not jump. Cost: one file per domain for every pod and control group."""
        now = self._counts(now_s)
        before, self._before = self._before, now
        by_pod: dict[str, dict[int, float | None]] = {}
        silent = frozenset() if before is None else before.untracked & now.untracked
        self._silence.remember(is_so=bool(silent))
        for (name, domain), count in now.children.items():
            past = None if before is None else before.children.get((name, domain))
            if (uid := uid_of(name)) is not None:
                rates = by_pod.setdefault(uid, {})
                if (name, domain) not in silent:
                    rates[domain] = _rate(past, count, now, before)
        totals = {domain: _total(before, now, domain, silent) for domain in self._domains}
        if before is not None:
            self._remember_blindness(totals, now)
        return MemoryTraffic(by_pod=by_pod, totals=totals, uncounted=now.uncounted)

    def _remember_blindness(self, totals: Mapping[int, float | None], now: _Counts) -> None:
        for domain, total in totals.items():
            self._blindness[domain].remember(is_so=total is None)
            if self._blindness[domain].windows == 0:
                self._cause_by_domain.pop(domain, None)
            elif total is None:
                self._cause_by_domain[domain] = _cause(now, domain) or self._cause_by_domain.get(domain, "")

    def _counts(self, now_s: float) -> _Counts:
        controls: dict[tuple[str, int], int | None] = {}
        children: dict[tuple[str, int], int | None] = {}
        parents: dict[str, str] = {}
        uncounted: set[str] = set()
        untracked: set[tuple[str, int]] = set()
        idle: set[tuple[str, int]] = set()
        for control, names in self._children().items():
            for group in names:
                name = group if uid_of(group) is not None else f"{control}/{group}"
                parents[name] = control
                for domain in self._domains:
                    text = self._text(inside(control, f"{MON_GROUPS}/{group}"), domain)
                    children[name, domain] = number_in(text)
                    if text == UNASSIGNED and name == group:
                        uncounted.add(uid_of(group) or "")
                    if text == UNTRACKED and name == group:
                        untracked.add((name, domain))
            for domain in self._domains:
                text = self._text(control, domain)
                is_ours = text == UNASSIGNED and control == THROTTLE  # it has no counters of its own, and no pods yet
                controls[control, domain] = 0 if is_ours else number_in(text)
                below = (children[name, domain] for name, parent in parents.items() if parent == control)
                if text == UNTRACKED and all(number is None for number in below):
                    idle.add((control, domain))
        return _Counts(
            at_s=now_s,
            controls=controls,
            children=children,
            parents=parents,
            uncounted=frozenset(uncounted),
            untracked=frozenset(untracked),
            idle=frozenset(idle),
        )

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


def _total(before: _Counts | None, now: _Counts, domain: int, silent: Collection[tuple[str, int]]) -> float | None:
    """The rate of the domain. No sample if a group of ours, or one that is there all the time, has no number.

    `silent`: children that count for nothing, because the hardware counted them in neither window. A control group does
    likewise, but not all of them: where nothing is counted, nothing is known.

    Control groups of now, less what they had themselves and what each of the children of now had, wherever it was."""
    if before is None:
        return None
    count, past = 0, 0
    idle = before.idle & now.idle
    counted = {key: number for key, number in now.controls.items() if key[1] == domain and key not in idle}
    if not counted:
        return None
    for (control, _), number in counted.items():
        own = _own(before, control, domain)
        if number is None or own is None:
            return None
        count, past = count + number, past + own
    for (name, there), number in now.children.items():
        if there == domain and (name, there) not in silent:
            earlier = before.children.get((name, domain), 0)  # a new group counts from 0
            if (number is None) is not (earlier is None) or (number is None and uid_of(name) is not None):
                return None
            if number is not None and earlier is not None:
                if number < earlier:
                    return None
                past += earlier
    return _rate(past, count, now, before)


def _cause(now: _Counts, domain: int) -> str:
    """The end of a sentence: a group whose counter has no number now, if that is why there is no total."""
    without = [control for (control, there), number in now.controls.items() if there == domain and number is None]
    busy = [control for control in without if (control, domain) not in now.idle] or without
    pods = [name for name, there in now.children if there == domain and uid_of(name) is not None]
    lost = [name for name in pods if now.children[name, domain] is None and (name, domain) not in now.untracked]
    group = min([*busy, *lost], default=None)
    return "" if group is None else f": the counter of {f'group {group}' if group else 'the root'} has no number"


def _own(before: _Counts, control: str, domain: int) -> int | None:
    """What a control group counted without its children; 0 for one that was not there."""
    number = before.controls.get((control, domain), 0)
    if number is None:
        return None
    inside_it = (before.children.get((name, domain)) for name, parent in before.parents.items() if parent == control)
    return number - sum(count or 0 for count in inside_it)


def _rate(past: int | None, count: int | None, now: _Counts, before: _Counts | None) -> float | None:
    if past is None or count is None or before is None or count < past or now.at_s <= before.at_s:
        return None
    rate = (count - past) / (now.at_s - before.at_s)
    return rate if rate <= FASTEST_BYTES_PER_S else None
