"""What a search tries without is withheld for it, by the planner and by the filter, and not for ever."""

from __future__ import annotations

import asyncio
import time

import pytest

from coda.allocator import CoreSearch, Tuning, TuningPhase
from coda.allocator.core_search import Leg
from coda.allocator.curve import CurvePoint
from coda.model import JobId
from coda_kube.objects.json_types import Json
from coda_kube.objects.tuning_status import tuning_json
from coda_kube.state import local_times
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, NODES, PODS, job_json, node_json, placement, pod_json, rank_json
from tests.extender.replicas import Replica, replica, state_of, status
from tests.virtual_time import VirtualLoop


def trying(cores: int) -> Json:
    search = CoreSearch(
        start=4, gpus=1, leg=Leg.DOWN, trying=cores, kept=4, curve=(CurvePoint(cores=4, share=0.9),), moves=4 - cores
    )
    return tuning_json(Tuning(attempt=1, phase=TuningPhase.MEASURING, found=search))


def shrink(api: FakeApi, cores: int) -> None:
    """The job runs with fewer cores: its resize is done, and its pod is seen with them."""
    done = {"attempt": 1, "sequence": 1, "state": "Done", "wanted": cores, "coresPerReplica": cores}
    done["since"] = "2026-01-01T00:00:00Z"
    api.change(f"{JOBS}/gang", lambda item: item["status"].update(resize=done, tuning=trying(cores)))
    pod = rank_json("gang", 0, "n1", node="n1", plan="of-gang")
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(cores)
    api.set(PODS, pod)


async def withheld(one: Replica, api: FakeApi) -> tuple[float, list[str], bool]:
    """Free cores as the guard has them, where a foreign pod of 3 cores may go, and whether a waiting job starts."""
    await asyncio.sleep(2)
    passed = one.ask(pod_json("foreign", cpu="3"), ["n1"]).passed
    free = one.cluster.guard.free_beside_all(["n1"])["n1"].cpu_m / 1000
    one.cluster.guard.in_flight.clear()
    return free, list(passed), state_of(api, "waiting") is not None


@pytest.mark.parametrize("ends", ["by itself", "never"])
def test_cores_that_a_search_tries_without_are_nobody_elses_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    async def seen() -> list[tuple[float, list[str], bool]]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        monkeypatch.setattr(local_times, "HELD_S", 20.0)
        api = FakeApi()
        api.set(NODES, node_json("n1", cpu=6, gpus=16))
        item = job_json("gang", replicas=1, phase="Running", placement=placement("n1", plan="of-gang"))
        item["spec"]["cpusPerReplica"] = "auto"
        item["status"]["tuning"] = trying(4)
        api.set(JOBS, item)
        api.set(PODS, rank_json("gang", 0, "n1", node="n1", plan="of-gang"))
        async with replica(api, clock=loop.time) as one:
            monkeypatch.setattr(one.cluster.state.local_times, "_now_s", lambda: 1.8e9 + loop.time())
            await api.until(one.planner.leads)
            shrink(api, 2)
            api.set(JOBS, job_json("waiting"))
            found = [await withheld(one, api)]
            assert [one.cluster.may_grow(JobId("default/gang"), cores) for cores in (4, 6, 7)] == [True, True, False]
            await asyncio.sleep(10)
            if ends == "by itself":
                api.change(f"{JOBS}/gang", lambda item: item["status"].pop("tuning"))
            else:
                found.append(await withheld(one, api))
                await asyncio.sleep(10)
            await api.until(lambda: state_of(api, "waiting") == "Released", timeout_s=60)
            assert status(api, "waiting")["placement"]["nodes"] == ["n1"]
            return found

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert set(map(str, runner.run(seen()))) == {str((2.0, [], False))}
