"""A node whose device plugin starts again: nobody gets its GPUs meanwhile, and after a while it counts as it is."""

from __future__ import annotations

import asyncio
import time

import pytest

from coda_kube.objects.json_types import Json
from coda_kube.state.short_nodes import SHORT_S
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, NODES, job_json, node_json
from tests.extender.replicas import replica, state_of, status
from tests.virtual_time import VirtualLoop


def new_node() -> Json:
    """One that is to have GPUs, and waits for them longer than any other node."""
    node = node_json("n0", gpus=0)
    node["metadata"]["labels"] |= {"nvidia.com/gpu.present": "true"}
    node["metadata"]["creationTimestamp"] = "2999-01-01T00:00:00Z"
    return node


@pytest.mark.parametrize("beside", [(), (new_node(),)], ids=["alone", "beside a new one"])
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_job_waits_for_the_plugin_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, beside: tuple[Json, ...], *, comes_back: bool
) -> None:
    async def codes() -> list[str]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        api = FakeApi()
        for node in (*beside, node_json("n1")):
            api.set(NODES, node)
        found: list[str] = []
        async with replica(api, clock=loop.time) as one:
            await api.until(lambda: one.cluster.state.node("n1") is not None)
            api.set(NODES, node_json("n1", gpus=2))
            await api.until(lambda: bool(one.cluster.held_back()))
            assert one.cluster.guard.free_beside_all(["n1"])["n1"].gpus == 2
            api.set(JOBS, job_json("gang", gpus=4))
            await api.until(lambda: "pending" in status(api, "gang"))
            found.append(status(api, "gang")["pending"]["code"])
            await asyncio.sleep(SHORT_S / 2)
            found.append(status(api, "gang")["pending"]["code"])
            if comes_back:
                api.set(NODES, node_json("n1"))
                await api.until(lambda: state_of(api, "gang") == "Released")
                return [*found, "Released"]
            await asyncio.sleep(SHORT_S / 2 + 5)
            return [*found, status(api, "gang")["pending"]["code"]]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        end = "Released" if comes_back else "NeverFits"
        assert runner.run(codes()) == ["InsufficientGPUs", "InsufficientGPUs", end]
