"""Whether the part that would decide about a job works: what a job says is as old as its last word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from coda.errors import CodaError
from coda.model.decision import WaitCode
from coda_cli.explain.waiting import PLACED, RESTARTING, Waiting
from coda_kube.api.client import Client, NotFound
from coda_kube.objects.names import OPERATOR_LEASE, PLANNER_LEASE, SYSTEM_NAMESPACE
from coda_kube.objects.quantities import seconds_from_time
from coda_sim.durations import duration_from_seconds

LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
LATE_S: Final = 60.0
"""A Lease that is older is looked at twice. Our choice: it is renewed every few seconds, and clocks differ by less."""
_LOOK_EVERY_S, _LOOKS = 0.5, 16  # leaders renew every 2 s
_WHO: Final = {PLANNER_LEASE: "planner", OPERATOR_LEASE: "operator"}


async def leaders_away(client: Client, lines: Iterable[Waiting]) -> str:
    """Return in a clause which parts that these lines wait for have no leader; empty if none."""
    leases = sorted({lease for line in lines for lease in leases_of(line)}, reverse=True)  # the planner comes first
    clauses = await asyncio.gather(*(leader_away(client, lease) for lease in leases))
    return ", and ".join(filter(None, clauses))


def leases_of(line: Waiting) -> tuple[str, ...]:
    """Return the Leases of the parts whose word it waits for: of the operator until it is accepted, and while it ends.

    A placement is released by the planner, and its pods are made by the operator."""
    if not line.wants or line.code in (RESTARTING, WaitCode.EDITED.value):
        return (OPERATOR_LEASE,)
    return (PLANNER_LEASE, OPERATOR_LEASE) if line.code == PLACED else (PLANNER_LEASE,)


async def leader_away(
    client: Client, lease: str, clock: Callable[[], float] = time.time, *, every_s: float = _LOOK_EVERY_S
) -> str:
    """Return in a clause that no replica leads; empty if one does, or this user may not look."""
    who, path = _WHO[lease], f"{LEASES}/{lease}"
    try:
        found = await client.get(path)
        spec = found.get("spec") or {}
        if not spec.get("holderIdentity"):
            return f"no {who} leads now"
        renewed_s = seconds_from_time(spec.get("renewTime"))
        if clock() - renewed_s < LATE_S:
            return ""
        for _ in range(_LOOKS):  # the clocks of two machines may differ: whether it changes tells
            await asyncio.sleep(every_s)
            if (await client.get(path))["metadata"].get("resourceVersion") != found["metadata"].get("resourceVersion"):
                return ""
    except NotFound:
        return f"no {who} leads now"
    except CodaError:
        return ""
    since = duration_from_seconds(float(round(clock() - renewed_s))) if renewed_s else "long"
    return f"the {who} has not renewed its Lease for {since}"
