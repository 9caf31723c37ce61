"""Pods of one namespace whose writes take long hold up nobody else."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from coda.placements.failed_writes import SLOW_PER_NAMESPACE
from coda_kube.api.client import MERGE
from coda_kube.objects.json_types import Json
from tests.extender.cpu_pods import CODA, OWNER, evictions, fill, gated, is_released
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, NODES, PODS, job_json, node_json, pod_json
from tests.extender.replicas import replica, state_of

SLOW = "/api/v1/namespaces/slow/pods"


class Hanging(FakeApi):
    """Writes to the pods of these paths have no answer until `goes_on`, as with a webhook that hangs."""

    def __init__(self, paths: str) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.hanging: list[str] = []
        self._paths = re.compile(paths)

    async def patch(self, path: str, body: Any, content_type: str = MERGE) -> Json:
        await self._hang(path)
        return await super().patch(path, body, content_type)

    async def create(self, path: str, body: Json, query: Any = None) -> Json:
        await self._hang(path + "?dryRun" * ("dryRun" in body.get("deleteOptions", {})))
        return await super().create(path, body, query)

    async def _hang(self, path: str) -> None:
        if self._paths.search(path):
            self.hanging.append(path)
            self._wake()
            await self.goes_on.wait()


async def test_releases_that_hang_hold_up_no_other_namespace() -> None:
    api = Hanging("namespaces/slow/pods/")
    api.set(NODES, node_json("n1", cpu=400))
    for number in range(100):
        api.set(SLOW, gated(f"slow-{number}", cpu=1))
    api.set(PODS, gated("honest", cpu=1, creationTimestamp="2026-01-01T00:00:01Z"))
    async with replica(api, writes_at_once=SLOW_PER_NAMESPACE):
        await api.until(lambda: is_released(api, "honest"))
        api.set(PODS, gated("next", cpu=1, creationTimestamp="2026-01-01T00:00:02Z"))
        await api.until(lambda: is_released(api, "next"))
        assert len(api.hanging) < 2 * SLOW_PER_NAMESPACE  # as many more may begin before these are known to be slow
        api.goes_on.set()
        await api.until(lambda: not api.item(f"{SLOW}/slow-0")["spec"]["schedulingGates"])


async def test_the_room_of_a_release_that_hangs_is_not_given_away() -> None:
    api = Hanging("pods/slow$")
    api.set(NODES, node_json("n1"))
    api.set(PODS, gated("slow", cpu=30))
    async with replica(api) as one:
        await api.until(lambda: bool(api.hanging))
        api.set(PODS, gated("large", cpu=30, creationTimestamp="2026-01-01T00:00:01Z"))
        api.set(PODS, gated("small", cpu=10, creationTimestamp="2026-01-01T00:00:02Z"))
        await api.until(lambda: is_released(api, "small"))
        assert not is_released(api, "large")
        assert [*one.ask(pod_json("foreign", cpu="20"), ["n1"]).passed] == []
        api.goes_on.set()
        await api.until(lambda: is_released(api, "slow"))


@pytest.mark.parametrize("hangs", ["/eviction$", "/eviction.dryRun$"], ids=["the order", "the question before"])
async def test_an_eviction_that_hangs_holds_up_nobody_and_is_ordered_once(hangs: str) -> None:
    api = Hanging(hangs)
    api.set(NODES, node_json("n1"))
    async with replica(api, policy=CODA):
        await fill(api)
        api.set(NODES, node_json("n2", gpus=0, cpu=4))
        api.set(JOBS, job_json("train"))
        await api.until(lambda: state_of(api, "train") == "Committed")
        api.set(PODS, gated("other", cpu=4, ownerReferences=[OWNER]))
        await api.until(lambda: is_released(api, "other"))
        assert len(api.hanging) == 1
        assert evictions(api) == []
        api.goes_on.set()
        await api.until(lambda: bool(evictions(api)))
        api.remove(f"{PODS}/{evictions(api)[0]}")
        await api.until(lambda: state_of(api, "train") == "Released")
        assert len(api.hanging) == len(evictions(api)) == 1
