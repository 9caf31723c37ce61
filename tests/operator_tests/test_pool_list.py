"""The ConfigMaps that tell the API server which nodes are the pool's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coda.nodes.pool import LISTS, is_in_pool, pool_lists
from coda_kube.objects.json_types import Json
from coda_operator.pool_list import LISTS_PATH, PoolList, list_json
from tests.operator_tests.fake_cluster import NODES, FakeCluster

TAINT = "coda.scheduler/pool"


def node(name: str, *, taint: str = "", gpus: int = 0) -> Json:
    taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
    return {"metadata": {"name": name}, "spec": {"taints": taints}, "status": {"allocatable": {"nvidia.com/gpu": gpus}}}


@pytest.mark.parametrize(
    ("keys", "gpus", "is_shared", "expected"),
    [
        pytest.param([TAINT], 0, False, True, id="tainted"),
        pytest.param(["other"], 8, False, False, id="another team's GPUs"),
        pytest.param([], 8, True, True, id="GPUs of a shared pool"),
        pytest.param([], 0, True, False, id="no GPUs in a shared pool"),
        pytest.param([TAINT], 0, True, True, id="tainted in a shared pool"),
    ],
)
def test_which_nodes_are_the_pools(keys: list[str], gpus: int, is_shared: bool, expected: bool) -> None:
    assert is_in_pool(keys, gpus, pool_taint=TAINT, is_shared=is_shared) is expected


def test_a_name_stays_in_its_list_whatever_comes_and_goes() -> None:
    names = [f"node-{number}" for number in range(1000)]
    whole, half = pool_lists(names), pool_lists(names[::2])
    assert sorted(name for one in whole for name in one) == sorted(names)
    assert all(set(few) <= set(many) for few, many in zip(half, whole, strict=True))


def test_5000_of_the_longest_names_fit_into_objects_of_1_mib() -> None:
    names = [f"{number:0253d}" for number in range(5000)]
    for number, part in enumerate(pool_lists(names)):
        assert len(list_json(number, part)["data"]["names"]) < 1 << 20


def test_no_name_is_found_inside_another() -> None:
    text = list_json(0, ("node-10", "node-2"))["data"]["names"]
    assert "\nnode-10\n" in text
    assert "\nnode-1\n" not in text
    assert list_json(0, ())["data"]["names"] == "\n"


@asynccontextmanager
async def kept(api: FakeCluster) -> AsyncIterator[None]:
    task = asyncio.create_task(PoolList(api, is_shared=False).run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def listed(api: FakeCluster) -> set[str]:
    return {name for item in api.all("configmaps") for name in item["data"]["names"].split("\n") if name}


async def test_the_list_follows_the_nodes() -> None:
    api = FakeCluster()
    api.set(NODES, node("n1", taint=TAINT))
    api.set(NODES, node("n2", gpus=8))
    async with kept(api):
        await api.until(lambda: listed(api) == {"n1"})
        assert len(api.all("configmaps")) == LISTS
        api.set(NODES, node("n2", taint=TAINT))
        await api.until(lambda: listed(api) == {"n1", "n2"})
        api.remove(f"{NODES}/n1")
        await api.until(lambda: listed(api) == {"n2"})


async def test_a_list_that_somebody_empties_or_removes_is_written_again() -> None:
    api = FakeCluster()
    api.set(NODES, node("n1", taint=TAINT))
    async with kept(api):
        await api.until(lambda: listed(api) == {"n1"})
        (path,) = (
            f"{LISTS_PATH}/{item['metadata']['name']}"
            for item in api.all("configmaps")
            if item["data"]["names"] != "\n"
        )
        api.change(path, lambda item: item.update(data={"names": ""}))
        await api.until(lambda: listed(api) == {"n1"})
        api.remove(path)
        await api.until(lambda: listed(api) == {"n1"})
