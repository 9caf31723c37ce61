"""The tenants of a run: a tree of virtual clusters of three levels, whose quotas somebody edits now and then.

What they ask for in turns is `plans.of_tenants`'s. The checker's rule (h) judges what each of them gets.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from coda.errors import CodaError
from coda_kube.api.client import AlreadyExists, Client, NotFound
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION
from coda_lab.experiments.load.plans import TENANTS

EDIT_EVERY_S: Final = (20.0, 40.0)  # the checker judges nothing for 10 s after an edit
PARENTS: Final[Mapping[str, str]] = {"research": "org", "red": "research", "blue": "research"}
SHARES: Final[Mapping[str, float]] = {"org": 0.6, "research": 0.6, "red": 0.3, "blue": 0.3, "firm": 0.3}  # of all GPUs
SMALLEST: Final = 0.5  # of its share: what an edit may leave of a quota

_CLUSTERS: Final = f"/apis/{API_VERSION}/virtualclusters"


class Tenants:
    """Makes the namespaces and their virtual clusters, and edits the quotas. What fails is tried again."""

    def __init__(self, admin: Client, *, seed: int, gpus: int) -> None:
        self._admin = admin
        self._rng = random.Random(f"tenants {seed}")
        self._gpus = gpus
        self.edits = 0

    async def make(self) -> None:
        """Make what is not there. Raises CodaError."""
        for name in TENANTS:
            with suppress(AlreadyExists):
                await self._admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
        for name, share in SHARES.items():
            with suppress(AlreadyExists):
                await self._admin.create(_CLUSTERS, virtual_cluster(name, round(share * self._gpus)))

    async def edit(self) -> None:
        """Edit quotas again and again, until cancelled. A quota that shrinks stops nobody."""
        while True:
            await asyncio.sleep(self._rng.uniform(*EDIT_EVERY_S))
            name = self._rng.choice(tuple(SHARES))
            gpus = round(SHARES[name] * self._gpus * self._rng.uniform(SMALLEST, 1.0))
            with suppress(CodaError):  # parts are killed, and a restore may take all back
                try:
                    await self._admin.patch(f"{_CLUSTERS}/{name}", {"spec": {"quota": {"gpus": gpus}}})
                    self.edits += 1
                except NotFound:
                    await self.make()


def virtual_cluster(name: str, gpus: int) -> Json:
    """The object of a seat of the tree."""
    spec: dict[str, Any] = {"namespaces": [name] if name in TENANTS else [], "quota": {"gpus": gpus}}
    if name in PARENTS:
        spec["parent"] = PARENTS[name]
    return {"apiVersion": API_VERSION, "kind": "VirtualCluster", "metadata": {"name": name}, "spec": spec}
