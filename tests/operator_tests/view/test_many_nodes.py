"""Nodes that stop being Ready by the thousand: what the brake is told, and what that costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.lifecycle import LifecycleConfig
from coda_operator.view import nodes as module
from coda_operator.view.nodes import Nodes
from tests.extender.fake_api import FakeApi
from tests.extender.objects import node_json

OUT = [{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]
NAMES = ("n1", "n2", "n3")


class Seen:
    """What one operator sees of nodes."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.version = 0
        self.nodes = Nodes(FakeApi(), lambda _: None, lambda: self.now_s, LifecycleConfig())

    def put(self, name: str, *, ready: bool, out: bool = False) -> None:
        self.version += 1
        item = node_json(name, ready=ready)
        item["metadata"]["resourceVersion"] = str(self.version)
        item["spec"]["taints"] = OUT if out else []
        self.nodes.cache.put(item)

    def drop(self, name: str) -> None:
        self.version += 1
        self.nodes.cache.drop({"metadata": {"name": name, "resourceVersion": str(self.version)}})


steps = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["ready", "away", "out", "gone"])), max_size=12)


class Model:
    """Which nodes count for the brake, and since when each is away."""

    def __init__(self, names: Iterable[str]) -> None:
        self.known, self.counted = set(names), set(names)
        self.away_s: dict[str, float] = {}

    def take(self, name: str, how: str, now_s: float) -> None:
        if how == "gone" and name not in self.known:
            return
        if how == "ready":
            self.away_s.pop(name, None)
        else:
            self.away_s.setdefault(name, now_s)
        if how in ("gone", "out"):
            self.counted.discard(name)
        elif how == "ready" or name not in self.known:  # before the first list ends, a new one may have been Ready
            self.counted.add(name)
        (self.known.discard if how == "gone" else self.known.add)(name)

    def unready_s(self) -> dict[str, float]:
        return {name: since_s for name, since_s in self.away_s.items() if name in self.counted}


async def compare(changes: list[tuple[str, str]], patch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, float]] = []

    def next_brake(before: Any, unready: Mapping[str, float], *_: Any) -> Any:
        told.append(dict(unready))
        return before

    seen, model = Seen(), Model(NAMES)
    for name in NAMES:
        seen.put(name, ready=True)
    patch.setattr(module, "next_brake", next_brake)
    for name, how in changes:
        seen.now_s += 1.0
        if how == "gone":
            seen.drop(name)
        else:
            seen.put(name, ready=how == "ready", out=how == "out")
        model.take(name, how, seen.now_s)
        seen.nodes._judge_brake()
        assert told[-1] == model.unready_s()


@given(steps)
def test_the_brake_is_told_of_each_counted_node_that_is_away_and_since_when(changes: list[tuple[str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(compare(changes, patch))


def cost_s(count: int) -> float:
    """CPU time for each node of so many that stop being Ready one after the other; the best of three."""
    tries = []
    for _ in range(3):
        seen = Seen()
        for number in range(count):
            seen.put(f"n{number}", ready=True)
        started_s = time.process_time()
        for number in range(count):
            seen.now_s += 0.002
            seen.put(f"n{number}", ready=False)
        tries.append((time.process_time() - started_s) / count)
    return min(tries)


async def test_a_node_costs_about_the_same_beside_four_thousand_as_beside_five_hundred() -> None:
    assert cost_s(4000) < 2.5 * cost_s(500)
