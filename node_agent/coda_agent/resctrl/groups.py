"""The agent's groups: a monitoring group per pod, and the throttle group they move into. One method, one step.

Every step is idempotent: what is so already is left, so a program killed between two steps repeats the last one. No
step touches a name without `coda-`, and the root's limits are never written. Nothing of this outlives the groups: with
`restore_all` all threads are back where they were, without any record of it. What must not live here: the journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from coda_agent.files import Files

Tids = Callable[[], frozenset[int]]  # lists all threads of a pod, anew with every call


class Outcome(Enum):
    """What became of a step."""

    DONE = "Done"  # it is so now, whether or not it was before
    RETRY = "Retry"  # the hardware's freed ids are not ready yet, or another program works on the tree: try later
    EXHAUSTED = "Exhausted"  # no class of service, monitoring id or counter is left: do without
    UNSUPPORTED = "Unsupported"  # this kernel or hardware cannot do it at all
    GONE = "Gone"  # a group it needs is not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Which pods have a group, by uid."""

    free: frozenset[str]
    throttled: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What `restore_all` did: directories removed, and one sentence for each that would not go."""

    removed: tuple[str, ...]
    failures: tuple[str, ...]


class Groups:
    """The coda groups of one resctrl tree. Every method may raise OSError for what its outcomes do not name (EIO and
    the like); the step is then not done, and calling again is safe. Pod uids: letters, digits, dashes; else EINVAL."""

    def __init__(self, files: Files) -> None:
        raise NotImplementedError

    def placed(self) -> Placed:
        """Reads which pods have a group, and where."""
        raise NotImplementedError

    def add_pod(self, uid: str) -> Outcome:
        """Step: the pod has a monitoring group, unthrottled if it is new. Its threads come with `settle`."""
        raise NotImplementedError

    def remove_pod(self, uid: str) -> Outcome:
        """Step: the pod has no group; living threads go back to the root."""
        raise NotImplementedError

    def add_throttle(self) -> Outcome:
        """Step: the throttle group exists; a new one limits nothing."""
        raise NotImplementedError

    def remove_throttle(self) -> Outcome:
        """Step: no throttle group, so nothing is limited. Pods in it lose their groups: release them first."""
        raise NotImplementedError

    def limits(self) -> Mapping[int, int]:
        """Reads the throttle group's limit by domain, in the hardware's unit; nothing where there is no group."""
        raise NotImplementedError

    def unlimited(self) -> Mapping[int, int]:
        """Reads the root's limit by domain: the value that restores."""
        raise NotImplementedError

    def set_limit(self, domain: int, value: int) -> int:
        """Step: the throttle group's limit in `domain` is `value`. Gives what the kernel made of it (it rounds).

        OSError: EINVAL for a value or domain that the hardware has not, ENOENT without throttle group."""
        raise NotImplementedError

    def throttle_pod(self, uid: str, tids: Tids) -> Outcome:
        """Step: the pod's group is in the throttle group, which must exist (else GONE), and has all `tids`.

        One rename; on kernels that cannot, a new group takes the threads over and the old one goes: killed half-way,
        calling again, `release_pod` or `restore_all` put it right."""
        raise NotImplementedError

    def release_pod(self, uid: str, tids: Tids) -> Outcome:
        """Step: the pod's group is below the root, and has all `tids`; as `throttle_pod`, backwards."""
        raise NotImplementedError

    def settle(self, uid: str, tids: Tids) -> Outcome:
        """Step: threads of the pod that are new since the last call are in its group, wherever that is.

        Threads that another program's group holds stay there. To be called once a window: threads that came by exec
        are no children of those that were moved."""
        raise NotImplementedError

    def restore_all(self) -> Restored:
        """No `coda-` group is left, nothing is limited. Any number of steps; goes on after failures; a second call
        finishes what a killed one began."""
        raise NotImplementedError
