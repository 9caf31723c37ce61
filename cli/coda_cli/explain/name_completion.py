"""What a shell offers for the name of a job or a namespace: those of the cluster, asked when a key is pressed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from coda.errors import CodaError
from coda_kube.api.client import connect
from coda_kube.api.credentials import current_namespace, users_kubeconfig
from coda_kube.objects.names import API_VERSION

PATIENCE_S: Final = 2.0
"""Our choice: a person waits for a key. A cluster that takes longer offers nothing."""
MOST: Final = "500"


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the TrainingJobs of the namespace that the words before this one name, or of the kubeconfig's."""
    kubeconfig = ctx.params.get("kubeconfig")
    context = ctx.params.get("context")
    namespace = ctx.params.get("namespace") or current_namespace(kubeconfig, context)
    return _names(kubeconfig, context, f"/apis/{API_VERSION}/namespaces/{namespace}/trainingjobs", incomplete)


def complete_namespace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the namespaces."""
    return _names(ctx.params.get("kubeconfig"), ctx.params.get("context"), "/api/v1/namespaces", incomplete)


def _names(kubeconfig: Path | None, context: str | None, path: str, start: str) -> list[str]:
    """The names there that begin so; none where the cluster does not say: a shell has no place for an error."""
    try:
        found = asyncio.run(asyncio.wait_for(_listed(kubeconfig, context, path), PATIENCE_S))
    except (CodaError, OSError, TimeoutError):
        return []
    return sorted(name for name in found if name.startswith(start))


async def _listed(kubeconfig: Path | None, context: str | None, path: str) -> Sequence[str]:
    client = await connect(users_kubeconfig(kubeconfig), timeout_s=PATIENCE_S, context=context)
    try:
        listing = await client.get(path, {"limit": MOST})
    finally:
        await client.close()
    return [item["metadata"]["name"] for item in listing["items"]]
