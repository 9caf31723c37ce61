"""Whether the tenants own what there is."""

from __future__ import annotations

from collections.abc import Iterator

from coda_cli.doctor.finding import Finding, Level
from coda_cli.doctor.seen import Seen
from coda_kube.quotas.virtual_clusters import CLUSTER_HAS_LESS


def owned_beyond(seen: Seen) -> Iterator[Finding]:
    """Yield one finding if the extender says that the top-level VirtualClusters own more than the cluster has."""
    for tenant in seen.tenants or ():
        for condition in (tenant.get("status") or {}).get("conditions") or ():
            if condition.get("reason") == CLUSTER_HAS_LESS:
                fix = "add nodes, or lower quotas (kubectl get vc): within its own nobody gives anything back"
                yield Finding(Level.NOTE, "quotas", str(condition.get("message") or ""), fix)
                return
