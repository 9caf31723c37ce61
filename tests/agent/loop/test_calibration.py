"""When the agent loads its whole node to measure the peak bandwidth: at a random time, and not while pods come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection

import pytest

from coda_agent.loop import CALIBRATE_AGAIN_S, CALIBRATE_WITHIN_S
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.rig import Rig


def without_peak(make_rig: MakeRig) -> Rig:
    rig = make_rig(peak_gb_per_s={})
    assert rig.agent.lacks_measured_peak
    return rig


async def test_idle_nodes_are_not_all_measured_at_once(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = without_peak(make_rig)
    began: list[float] = []

    def refuses(_pods: Collection[str], _is_over: Callable[[], bool]) -> tuple[str, ...]:
        began.append(rig.node.now.monotonic_s)
        return ("the node is busy",)

    monkeypatch.setattr(rig.agent, "calibrate", refuses)
    step_s = 300
    firsts = []
    for _ in range(12):
        rig.loop._calibrate_at_s = None
        began.clear()
        start_s = rig.node.now.monotonic_s
        while len(began) < 2:
            await rig.loop.round()
            rig.node._seconds += step_s
        firsts.append(began[0] - start_s)
        assert CALIBRATE_AGAIN_S <= began[1] - began[0] <= 2 * CALIBRATE_AGAIN_S + step_s
    assert max(firsts) <= CALIBRATE_WITHIN_S + step_s
    assert max(firsts) - min(firsts) > CALIBRATE_WITHIN_S / 4


async def test_a_pod_that_comes_ends_the_measurement(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = without_peak(make_rig)
    rig.loop._calibrate_at_s = 0.0
    loaded = threading.Event()

    def loads(_pods: Collection[str], is_over: Callable[[], bool]) -> tuple[str, ...]:
        loaded.set()
        while not is_over():
            pass
        return ("somebody needs the node now",)

    monkeypatch.setattr(rig.agent, "calibrate", loads)
    running = asyncio.create_task(rig.loop.round())
    await asyncio.to_thread(loaded.wait)
    rig.node.start("new", cores=2)
    await asyncio.wait_for(running, 20)
    assert rig.loop._calibration_problems == ("somebody needs the node now",)
