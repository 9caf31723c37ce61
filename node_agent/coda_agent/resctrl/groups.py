"""The agent's groups: a monitoring group per pod, and the throttle group they move into. One method is one step.

Every step is idempotent: an agent killed between two steps repeats the last one. No step touches a name without
`coda-`, and the root's limits are never written. Nothing outlives the groups: after `remove_all` every thread is back
in its old place, without any record."""

from __future__ import annotations

import contextlib
import errno
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from coda_agent.host import Files
from coda_agent.resctrl.layout import FREE, THROTTLE, THROTTLED, group_name, inside, uid_of
from coda_agent.resctrl.remove import Removed, remove_all, rescue_foreign
from coda_agent.resctrl.schemata import NAME, bandwidth_limits, limit_command, limit_lines
from coda_agent.resctrl.tasks import ListThreads, TaskGroup, evacuate, fill_group

RECHECK_EVERY = 30  # calls of `collect_threads`; thread ids seldom come again or are moved by others
_CANNOT_RENAME = frozenset({errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EXDEV})


class GroupOutcome(Enum):
    """What became of a step."""

    DONE = "Done"  # it is so now, also if it was so before
    RETRY = "Retry"  # the hardware's freed ids are not ready yet, or another program works on the tree: try later
    EXHAUSTED = "Exhausted"  # no class of service, monitoring id or counter is left: do without
    UNSUPPORTED = "Unsupported"  # this kernel or hardware cannot do it at all
    GONE = "Gone"  # a group it needs is not there


_OUTCOMES: Mapping[int | None, GroupOutcome] = {
    errno.EEXIST: GroupOutcome.DONE,
    errno.EBUSY: GroupOutcome.RETRY,
    errno.EWOULDBLOCK: GroupOutcome.RETRY,
    errno.ENOSPC: GroupOutcome.EXHAUSTED,
    errno.EPERM: GroupOutcome.UNSUPPORTED,
    errno.EACCES: GroupOutcome.UNSUPPORTED,
    errno.EROFS: GroupOutcome.UNSUPPORTED,
    errno.ENOENT: GroupOutcome.GONE,
    errno.ENODEV: GroupOutcome.GONE,
    errno.ENOTDIR: GroupOutcome.GONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedPods:
    """Which pods have a group, by uid."""

    free: frozenset[str]
    throttled: frozenset[str]


class Groups:
    """The coda groups of one resctrl tree.

    Every method may raise OSError for errors that no outcome names, such as EIO. The step is then not done, and calling
    again is safe. Pod uids are letters, digits and dashes, else EINVAL."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._tree = files.resctrl
        self._known: dict[str, set[int]] = {}  # threads already moved, by uid; it only saves writes
        self._foreign: dict[str, set[int]] = {}  # of these, those that another program keeps in its own group
        self._collected: Counter[str] = Counter()  # calls of `collect_threads`, by uid

    def grouped_pods(self) -> GroupedPods:
        """Read which pods have a group, and where. A pod caught between two places counts as throttled."""
        throttled = self._pods_in(THROTTLED)
        return GroupedPods(free=self._pods_in(FREE) - throttled, throttled=throttled)

    def add_pod(self, uid: str) -> GroupOutcome:
        """Step: give the pod a monitoring group that counts, unthrottled if it is new. Its threads come with
        `collect_threads`.

        If no counter is left, the group is removed again: then its traffic counts at least in the root's total."""
        return self._whole(lambda: self._add_pod(uid))

    def _add_pod(self, uid: str) -> GroupOutcome:
        name = group_name(uid)
        directory = next((place for place in (THROTTLED, FREE) if self._tree.exists(f"{place}/{name}")), FREE)
        outcome = self._create(f"{directory}/{name}", "tasks")
        if outcome is GroupOutcome.DONE and not self._has_counter(f"{directory}/{name}"):
            return GroupOutcome.EXHAUSTED if self.remove_pod(uid) is GroupOutcome.DONE else GroupOutcome.RETRY
        return outcome

    def remove_pod(self, uid: str) -> GroupOutcome:
        """Step: remove the pod's group; living threads go back to the root."""
        self._forget_threads(uid)
        self._collected.pop(uid, None)
        for place in (THROTTLED, FREE):
            self._remove(f"{place}/{group_name(uid)}")
        return GroupOutcome.DONE

    def add_throttle(self) -> GroupOutcome:
        """Step: create the throttle group; a new one has the root's limits and cache, where the kernel lets it.

        The kernel gives a new group everything: what an administrator took from the root would come back. It needs no
        counters: only its pods are read."""
        if self._tree.exists(f"{THROTTLE}/schemata"):
            return GroupOutcome.DONE
        return self._whole(self._make_throttle)

    def _make_throttle(self) -> GroupOutcome:
        outcome = self._create(THROTTLE, "schemata")
        if outcome is GroupOutcome.DONE:
            self._copy_root_limits()
            for event in ("mbm_local_bytes", "mbm_total_bytes"):
                self._assign(THROTTLE, f"{event}:*=_")
        return outcome

    def remove_throttle(self) -> GroupOutcome:
        """Step: remove the throttle group, so that nothing is limited. Pods in it lose their groups: release them
        first."""
        for uid in self._pods_in(THROTTLED):
            self._forget_threads(uid)
        rescue_foreign(self._tree, THROTTLE)
        self._remove(THROTTLE)
        return GroupOutcome.DONE

    def limits(self) -> Mapping[int, int]:
        """Read the throttle group's limit by domain, in the hardware's unit; empty without the group."""
        return self._limits_of(THROTTLE)

    def root_limits(self) -> Mapping[int, int]:
        """Read the root's limit by domain: the value that restores."""
        return self._limits_of("")

    def set_limit(self, domain: int, value: int) -> int:
        """Step: set the throttle group's limit in `domain`. Return the limit in force: the kernel rounds.

        Raises OSError: EINVAL for a value or domain that the hardware does not have, ENOENT without throttle group, EIO
        if the value does not show afterwards."""
        self._tree.write(f"{THROTTLE}/schemata", limit_command(domain, value))
        effective = self.limits().get(domain)
        if effective is None:
            raise OSError(errno.EIO, f"the limit of domain {domain} does not show after writing it", THROTTLE)
        return effective

    def throttle_pod(self, uid: str, list_threads: ListThreads) -> GroupOutcome:
        """Step: move the pod's group with all its threads into the throttle group, which must exist (else GONE).

        This is one rename. On kernels that cannot rename, a new group takes the threads and the old one is removed. If
        that is killed half-way, calling again, `release_pod` or `remove_all` repairs it."""
        if not self._tree.exists(f"{THROTTLE}/schemata"):
            return GroupOutcome.GONE
        target = TaskGroup(directory=f"{THROTTLED}/{group_name(uid)}", control=THROTTLE)
        return self._whole(lambda: self._move(uid, FREE, target, list_threads))

    def release_pod(self, uid: str, list_threads: ListThreads) -> GroupOutcome:
        """Step: move the pod's group with all its threads back below the root, as `throttle_pod`.

        If the pod can have no group there, its threads are freed anyway, and the outcome says why."""
        return self._whole(lambda: self._release(uid, list_threads), waits=False)

    def _release(self, uid: str, list_threads: ListThreads) -> GroupOutcome:
        name = group_name(uid)
        outcome = self._move(uid, THROTTLED, TaskGroup(directory=f"{FREE}/{name}", control=""), list_threads)
        if outcome not in (GroupOutcome.DONE, GroupOutcome.RETRY):
            evacuate(self._files, list_threads)
            self._remove(f"{THROTTLED}/{name}")
            evacuate(self._files, list_threads)  # threads cloned meanwhile
        return outcome

    def collect_threads(self, uid: str, list_threads: ListThreads, *, recheck: bool = False) -> GroupOutcome:
        """Step: move the pod's threads that are new since the last call (`recheck`: all) into its group.

        Threads in another program's group stay there. Call it once per window. Every 30th call rechecks, because other
        programs move threads and remove groups too. RETRY: the pod forks faster than its threads can be listed. GONE:
        it has no group (checked only if there are new threads)."""
        name = group_name(uid)
        self._collected[uid] += 1
        if recheck or self._collected[uid] % RECHECK_EVERY == 0:
            self._forget_threads(uid)
        elif list_threads() <= self._known.get(uid, set()):
            return GroupOutcome.DONE
        for place, control in ((THROTTLED, THROTTLE), (FREE, "")):
            if self._tree.exists(f"{place}/{name}"):
                return self._fill(uid, TaskGroup(directory=f"{place}/{name}", control=control), list_threads)
        return GroupOutcome.GONE

    def are_held_by_others(self) -> bool:
        """True if other programs keep at least half of some pod's threads in groups of theirs.

        Such threads stay there, so the pod's own group tells little of its traffic."""
        return any(foreign and 2 * len(foreign) >= len(self._known[uid]) for uid, foreign in self._foreign.items())

    def remove_all(self) -> Removed:
        """Remove every `coda-` group, so that nothing is limited. Goes on after failures.

        A second call finishes what a killed one began."""
        self._known.clear()
        self._foreign.clear()
        return remove_all(self._tree)

    def _whole(self, step: Callable[[], GroupOutcome], *, waits: bool = True) -> GroupOutcome:
        """Do a step under the tree's lock, for other programs that take it (pqos does): they see it done or not begun.

        RETRY while one of them works. Not `waits`: then without the lock, since what is limited must be freed."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._tree.locked())
            except BlockingIOError:
                if waits:
                    return GroupOutcome.RETRY
            except (FileNotFoundError, NotADirectoryError):
                pass  # no tree: the step says so
            return step()

    def _move(self, uid: str, origin: str, target: TaskGroup, list_threads: ListThreads) -> GroupOutcome:
        old = f"{origin}/{target.name}"
        try:
            if not self._tree.exists(target.directory):
                self._tree.rename(old, target.directory)
        except OSError as failure:
            if failure.errno not in {*_CANNOT_RENAME, errno.ENOENT}:
                raise
            return self._carry_over(uid, old, target, list_threads)
        if self._tree.exists(old):  # left by a killed step
            return self._carry_over(uid, old, target, list_threads)
        outcome = self._fill(uid, target, list_threads)
        return GroupOutcome.DONE if outcome is GroupOutcome.RETRY else outcome

    def _carry_over(self, uid: str, old: str, target: TaskGroup, list_threads: ListThreads) -> GroupOutcome:
        """Without rename: fill a new group, then remove the old one."""
        outcome = self._create(target.directory, "tasks")
        if outcome is not GroupOutcome.DONE:
            return outcome
        self._has_counter(target.directory)
        self._forget_threads(uid)
        outcome = self._fill(uid, target, list_threads)
        if outcome is not GroupOutcome.GONE:
            self._remove(old)
        return GroupOutcome.DONE if outcome is GroupOutcome.RETRY else outcome

    def _fill(self, uid: str, target: TaskGroup, list_threads: ListThreads) -> GroupOutcome:
        try:
            known, foreign = self._known.setdefault(uid, set()), self._foreign.setdefault(uid, set())
            complete = fill_group(self._files, target, list_threads, known, foreign)
        except OSError as failure:
            if failure.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            self._forget_threads(uid)
            return GroupOutcome.GONE
        return GroupOutcome.DONE if complete else GroupOutcome.RETRY

    def _create(self, directory: str, proof: str) -> GroupOutcome:
        """mkdir. A directory that the kernel does not fill with `proof` is no group, and is removed."""
        try:
            self._tree.mkdir(directory)
        except OSError as failure:
            if failure.errno not in _OUTCOMES:
                raise
            outcome = _OUTCOMES[failure.errno]
            is_below = directory.startswith(THROTTLE + "/")
            return GroupOutcome.UNSUPPORTED if outcome is GroupOutcome.GONE and not is_below else outcome
        if self._tree.exists(f"{directory}/{proof}"):
            return GroupOutcome.DONE
        self._remove(directory)
        return GroupOutcome.UNSUPPORTED

    def _copy_root_limits(self) -> None:
        fresh = set(limit_lines(self._tree.read_text(f"{THROTTLE}/schemata")))
        try:
            for line in limit_lines(self._tree.read_text("schemata")):
                with contextlib.suppress(*(() if line.startswith(f"{NAME}:") else (OSError,))):
                    if line not in fresh:  # a cache that another group has for itself cannot be shared
                        self._tree.write(f"{THROTTLE}/schemata", line)
        except OSError:
            self._remove(THROTTLE)  # made again by the next call
            raise

    def _has_counter(self, directory: str) -> bool:
        """Where counters are assigned: one for the total, none for what is not read. False: none is left."""
        self._assign(directory, "mbm_local_bytes:*=_")  # one by one: an event that is disabled refuses its own alone
        return self._assign(directory, "mbm_total_bytes:*=e")

    def _assign(self, directory: str, command: str) -> bool:
        try:
            self._tree.write(f"{directory}/mbm_L3_assignments", f"{command}\n")
        except OSError as failure:
            if failure.errno == errno.ENOSPC:
                return False
            if failure.errno not in (errno.ENOENT, errno.EINVAL, errno.EACCES):
                raise  # these three: this kernel assigns no counters, or has no such event
        return True

    def _remove(self, directory: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._tree.rmdir(directory)

    def _forget_threads(self, uid: str) -> None:
        self._known.pop(uid, None)
        self._foreign.pop(uid, None)

    def _pods_in(self, place: str) -> frozenset[str]:
        try:
            names = self._tree.listdir(place)
        except (FileNotFoundError, NotADirectoryError):
            return frozenset()
        return frozenset(uid for name in names if (uid := uid_of(name)) is not None)

    def _limits_of(self, control: str) -> Mapping[int, int]:
        try:
            return bandwidth_limits(self._tree.read_text(inside(control, "schemata")))
        except OSError as failure:
            if failure.errno not in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
                raise
            return {}
