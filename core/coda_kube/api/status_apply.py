"""Applies one part's fields of an object's status, and sees to it that what it leaves out is gone.

Server-side apply removes a field only from its last owner. Anybody who may edit an object can reset its managedFields,
and then another owner keeps the field (live: `kubectl patch --type merge -p '{"metadata":{"managedFields":[{}]}}'`).
"""

from __future__ import annotations

from collections.abc import Collection

from coda_kube.api.client import JSON_PATCH, Client
from coda_kube.objects.json_types import Json


async def apply_status(
    client: Client, path: str, body: Json, *, manager: str, fields: Collection[str], timeout_s: float | None = None
) -> Json:
    """Apply `body` to the status at `path`; of `fields`, remove those that it leaves out. Returns the object then.

    Two writes, if another owner keeps a field; each is refused after any other write (Conflict) if `body` has a
    resourceVersion. A death between the two is mended by the next apply."""
    answer = await client.apply(path, body, manager=manager, timeout_s=timeout_s)
    status = answer.get("status") or {}
    left = sorted(name for name in fields if name in status and name not in body["status"])
    if not left:
        return answer
    metadata = answer["metadata"]
    version = {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
    same = {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]}
    removals = [{"op": "remove", "path": f"/status/{name}"} for name in left]
    return await client.patch(path, [same, version, *removals], JSON_PATCH)
