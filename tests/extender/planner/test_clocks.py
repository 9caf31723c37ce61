"""The clock of the planner's machine is wrong, or jumps: nobody's deadline is judged by it."""

import time

import pytest

from coda_kube.api.steady_clock import SteadyClock
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, NODES, job_json, node_json, placement
from tests.extender.replicas import placement_of, replica, state_of


class Skewed(FakeApi):
    """The API server's clock differs by an hour from this machine's."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__()
        self.clock = SteadyClock(wall=lambda: time.time() + ahead_s)


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
async def test_a_planner_whose_clock_is_wrong_judges_by_the_api_servers(ahead_s: float) -> None:
    """The back-off is the operator's, the placement an earlier leader's; both are written by the API server's time."""
    api = Skewed(ahead_s)
    now_s = api.clock()
    api.set(NODES, node_json("n1"))
    api.set(NODES, node_json("n2"))
    fresh = placement("n1", epoch=0, state="Committed", plan="fresh", deadline_s=now_s + 50)
    api.set(JOBS, job_json("early", placement=fresh))
    api.set(JOBS, job_json("waits", attempt=2, notBefore=time_from_seconds(now_s + 0.5)))
    async with replica(api):
        await api.until(lambda: state_of(api, "early") == "Released")
        assert placement_of(api, "early")["planId"] == "fresh"
        await api.until(lambda: state_of(api, "waits") == "Released")
    committed_s = seconds_from_time(placement_of(api, "waits")["committedTime"])
    assert abs(committed_s - api.clock()) < 10.0


async def test_a_placement_that_was_written_by_an_api_server_of_another_time_is_not_dropped_early() -> None:
    """An earlier leader asked another API server, whose clock is an hour behind."""
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    behind_s = api.clock() - 3600.0
    early = placement("n1", epoch=0, state="Committed", plan="early", deadline_s=behind_s + 60)
    early["committedTime"] = time_from_seconds(behind_s)
    api.set(JOBS, job_json("gang", placement=early))
    async with replica(api):
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert placement_of(api, "gang")["planId"] == "early"
