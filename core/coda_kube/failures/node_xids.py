"""The Xids that agents saw, as their NodeProfiles tell them.

No clocks of two machines are compared: an Xid is as old as its own agent says, from when the profile came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coda.correlation.suspect_nodes import NodeXid
from coda.errors import InvalidInput
from coda_kube.objects.quantities import seconds_from_time

Item = Mapping[str, Any]
LONGEST_S: Final = 3600.0
"""An agent writes its profile at least so often, so a profile is never older."""
SILENT_S: Final = 2 * LONGEST_S
"""An agent that has written nothing for so long is dead. Our choice: it has missed a profile by an hour."""
MOST: Final = 64  # as the CRD says


def came_s(profile: Item, now_s: float) -> float:
    """Return when a profile that was found in a list was written: by its clock, as far as that can be true."""
    try:
        written_s = seconds_from_time((profile.get("status") or {}).get("time"))
    except InvalidInput:
        return now_s
    return now_s - min(LONGEST_S, max(0.0, now_s - written_s))


def is_silent(profile: Item, now_s: float) -> bool:
    """True if the agent has written nothing for two hours, by the time in its profile, or never said a time.

    Who watches the profiles need not believe the clock of a node: see the operator's `Agents`."""
    try:
        return now_s - seconds_from_time((profile.get("status") or {}).get("time")) >= SILENT_S
    except InvalidInput:
        return True


def watches_xids(profile: Item) -> bool:
    """True if the node's agent sees every Xid."""
    return (profile.get("status") or {}).get("watchesXids") is True


def xids_from_json(profile: Item, written_s: float) -> tuple[NodeXid, ...]:
    """Return the Xids of a profile; `written_s`: when it was written, by our own clock. What is odd is left out.

    One that its own agent stamped later than its profile is not dated: the node's clock was set back in between."""
    status, found = profile.get("status") or {}, []
    for entry in (status.get("xids") or ())[:MOST]:
        try:
            time_s = seconds_from_time(entry["time"])
            told_age_s = seconds_from_time(status.get("time")) - time_s
            age_s = max(0.0, told_age_s)
            repeated_s = max(0.0, time_s - (seconds_from_time(entry.get("firstTime")) or time_s))
            one = NodeXid(
                node=str(profile["metadata"]["name"]),
                gpu=str(entry["gpu"]),
                xid=int(entry["xid"]),
                first_s=written_s - age_s - repeated_s,
                time_s=written_s - age_s,
                pods=tuple(str(uid) for uid in entry.get("podUIDs") or ()),
                dated=told_age_s >= 0,
            )
        except (InvalidInput, KeyError, TypeError, ValueError):
            continue
        found.append(one)
    return tuple(found)
