"""Where the agent's groups are in the tree, and whom a name belongs to. Paths only."""

from __future__ import annotations

import errno
import re

PREFIX = "coda-"
THROTTLE = "coda-throttle"
MON_GROUPS = "mon_groups"
FREE = MON_GROUPS  # where the groups of unthrottled pods are
THROTTLED = f"{THROTTLE}/{MON_GROUPS}"
# what is beside the groups in a control group's directory; newer kernels may add files
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
    """Return the name of a pod's group. Raises OSError EINVAL for a uid with other than letters, digits and dashes."""
    if not _UID.match(uid):
        raise OSError(errno.EINVAL, "no pod uid", uid[:100])
    return PREFIX + uid


def uid_of(name: str) -> str | None:
    """Return the pod of a group's name; None for names of others."""
    uid = name.removeprefix(PREFIX)
    return uid if uid != name and _UID.match(uid) else None


def is_ours(name: str) -> bool:
    """True if the agent may change or remove the group."""
    return name.startswith(PREFIX)


def inside(control: str, name: str) -> str:
    """Return a path in a control group's directory; the root's name is empty."""
    return f"{control}/{name}" if control else name
