"""Stops Coda's parts: who still runs would write again what is taken back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

from coda.errors import CodaError
from coda.wording import listed
from coda_kube.api.client import Client
from coda_kube.api.until import until
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import SYSTEM_NAMESPACE

log = logging.getLogger(__name__)

WRITERS: Final = {"agent": "daemonsets", "operator": "deployments", "extender": "deployments"}
_PODS: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"


async def stop(client: Client, kinds: Mapping[str, str], *, stopped: Collection[str] = (), within_s: float) -> None:
    """End these parts, and wait until their pods are gone: from then on they write no more.

    Raises CodaError if some run nevertheless, or again some of `stopped`: a GitOps tool makes them again. A pod that is
    being deleted and does not end holds nobody up: its node is dead, perhaps for ever."""
    for part, kind in kinds.items():
        await client.delete(f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/{kind}/coda-{part}")
    part_by_key: dict[str, str] = {}
    running: list[str] = []

    def all_gone(by_key: Mapping[str, Json]) -> bool:
        part_by_key.clear()
        part_by_key.update({key: part for key, pod in by_key.items() if (part := _part_of(pod)) in {*kinds, "restore"}})
        seen = {*part_by_key, *(key for key, pod in by_key.items() if _part_of(pod) in stopped)}
        running[:] = sorted(key for key in seen if _runs(by_key[key]))
        return not part_by_key

    try:
        async with asyncio.timeout(within_s):
            await until(client, _PODS, all_gone)
    except TimeoutError:
        if not running:
            log.warning("these pods do not end, perhaps their nodes are dead: %s", ", ".join(part_by_key))
    if running:
        run, write = ("runs", "writes") if len(running) == 1 else ("run", "write")
        raise CodaError(
            f"{listed(running)} {run} still, or again, and {write} for Coda: "
            "switch off first whatever makes them again, such as the automated sync of a GitOps tool"
        )
    log.info("stopped: %s", ", ".join(kinds))


def _part_of(pod: Json) -> str:
    """The part whose pod it is; empty for somebody else's."""
    labels = pod["metadata"].get("labels") or {}
    return str(labels.get("app.kubernetes.io/component", "")) if labels.get("app.kubernetes.io/name") == "coda" else ""


def _runs(pod: Json) -> bool:
    has_ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return "deletionTimestamp" not in pod["metadata"] and not has_ended
