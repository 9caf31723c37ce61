"""Where the agent's groups lie in the tree, and whose a name is. Paths only; nothing is read or written here."""

from __future__ import annotations

import errno
import re

PREFIX = "coda-"
THROTTLE = "coda-throttle"
MON_GROUPS = "mon_groups"
FREE = MON_GROUPS  # where the groups of unthrottled pods are
THROTTLED = f"{THROTTLE}/{MON_GROUPS}"
# what lies beside the groups in a control group's directory; newer kernels may add files
NO_GROUPS = frozenset(
    {
        "info",
        "mon_data",
        "mon_groups",
        "tasks",
        "cpus",
        "cpus_list",
        "schemata",
        "size",
        "mode",
        "mba_MBps_event",
        "mbm_L3_assignments",
    }
)
_UID = re.compile(r"[0-9A-Za-z-]{1,100}\Z")


def group_name(uid: str) -> str:
    """The name of a pod's group. OSError EINVAL: a uid that is not letters, digits and dashes."""
    if not _UID.match(uid):
        raise OSError(errno.EINVAL, "no pod uid", uid[:100])
    return PREFIX + uid


def uid_of(name: str) -> str | None:
    """The pod of a group's name; None for names of others."""
    uid = name.removeprefix(PREFIX)
    return uid if uid != name and _UID.match(uid) else None


def is_ours(name: str) -> bool:
    """Whether a group is the agent's to change or remove."""
    return name.startswith(PREFIX)


def inside(control: str, name: str) -> str:
    """A path in a control group's directory; the root's name is empty."""
    return f"{control}/{name}" if control else name
