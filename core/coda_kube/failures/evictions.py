"""What a kubelet says of the main container as it evicts a pod for its node's want of memory or disk.

Source: `evictionMessage` of Kubernetes' `pkg/kubelet/eviction/helpers.go`. Old kubelets do not say how much they keep
free, and blame nobody here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from coda.errors import InvalidInput
from coda_kube.objects.quantities import whole_from_quantity

Item = Mapping[str, Any]

_LOW_ON: Final = re.compile(r"The node was low on resource: (memory|ephemeral-storage)\.")
_KEPT: Final = re.compile(r"Threshold quantity: ([0-9.]{1,20}[A-Za-z]{0,2}),")
_USED: Final = re.compile(
    r"Container ([a-z0-9.-]{1,253}) was using ([0-9.]{1,20}[A-Za-z]{0,2}), request is ([0-9.]{1,20}[A-Za-z]{0,2}),"
)


def overuse_of(status: Item, main: str) -> str:
    """Return what a pod was evicted for if its container `main` took more of it than it had asked for: the resource.

    "" if that does not explain the want: a kubelet names each container that uses more than its request, if that is a
    few KiB of disk, too. It must be as much as the kubelet keeps free: then the node had enough without it."""
    message = status.get("message") or ""
    low_on = _LOW_ON.match(message) if status.get("reason") == "Evicted" else None
    kept = _KEPT.search(message)
    used = next((found for found in _USED.finditer(message) if found[1] == main), None)
    if low_on is None or kept is None or used is None:
        return ""
    try:
        beyond = whole_from_quantity(used[2]) - whole_from_quantity(used[3])
        return low_on[1] if beyond >= whole_from_quantity(kept[1]) else ""
    except InvalidInput:
        return ""
