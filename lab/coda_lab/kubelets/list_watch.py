"""A list and watch that keeps nothing: whole lists and single events go to the given functions.

`coda_kube.api.watch_cache` keeps every object, which for 20 000 pods costs more than the kubelets need. It also hands a
list over one by one. A starting kubelet must see the list whole, to count running pods before it admits new ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from coda.errors import Outage
from coda_kube.api.client import Client, Expired, Rejected
from coda_kube.api.watch_cache import IDLE_TIMEOUT_S, SERVER_TIMEOUT_S
from coda_kube.objects.json_types import Json

log = logging.getLogger(__name__)

_DELAYS_S = (0.1, 0.3, 1.0, 2.0, 5.0)


async def follow(
    client: Client,
    path: str,
    query: dict[str, str],
    *,
    listed: Callable[[list[Json]], None],
    seen: Callable[[Json], None],
    gone: Callable[[Json], None],
) -> None:
    """Call `listed` with the collection, then `seen` and `gone` for each change, until cancelled.

    Lists again when its place in the stream is lost; reconnects with a growing delay."""
    version: str | None = None
    failures = 0
    while True:
        try:
            if version is None:
                listing = await client.list_pages(path, query)
                version = str(listing["metadata"]["resourceVersion"])
                listed(listing["items"])
            async for kind, item in _events(client, path, query, version):
                version, failures = str(item["metadata"]["resourceVersion"]), 0
                if kind != "BOOKMARK":
                    (gone if kind == "DELETED" else seen)(item)
            failures = 0
        except Expired:
            version = None
        except (Outage, Rejected) as error:
            delay_s = _DELAYS_S[min(failures, len(_DELAYS_S) - 1)]
            log.warning("%s: %s; trying again in %.1f s", path, error, delay_s)
            failures += 1
            await asyncio.sleep(delay_s)


async def _events(client: Client, path: str, query: dict[str, str], version: str) -> Any:
    wanted = query | {
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(SERVER_TIMEOUT_S),
    }
    async with client.watch(path, wanted, idle_s=IDLE_TIMEOUT_S) as events:
        async for event in events:
            if event["type"] == "ERROR":
                message = str(event["object"].get("message"))
                raise Expired(message) if event["object"].get("code") == 410 else Outage(message)
            yield event["type"], event["object"]
