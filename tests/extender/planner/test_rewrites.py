"""How often the numbers of reasons are rewritten: the slower the API server, the less it is asked to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coda.model import JobId, WaitCode
from coda.model.decision import WaitReason
from coda_extender.metrics import Metrics
from coda_extender.planner.reason_writer import ReasonWriter
from coda_extender.planner.status_writer import StatusWriter
from coda_extender.planner_process import ChangedRefusals, RefusedAlike
from coda_extender.written import Written
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from tests.virtual_time import VirtualLoop

JOBS = tuple(JobId(f"default/job-{number}") for number in range(200))
LASTS_S = 60.0


class Slow:
    """Stores each status after `write_s`; every second write finds that nothing is to be written."""

    def __init__(self, write_s: float, json_by_id: dict[JobId, Json]) -> None:
        self._write_s, self._json_by_id = write_s, json_by_id
        self.written = self._asked = 0

    def now_s(self) -> float:
        return time.monotonic()

    async def write(
        self, job: JobId, change: Callable[[Json], Json | None], *, done: Callable[[], None], ended: Any
    ) -> Written:
        status = change(self._json_by_id[job]["status"])
        self._asked += 1
        if status is None or self._asked % 2:
            return Written.NEEDLESS
        await asyncio.sleep(self._write_s)
        self._json_by_id[job]["status"] = status
        self.written += 1
        done()
        return Written.DONE


@pytest.mark.parametrize(("write_s", "per_second"), [(0.001, 50.0), (0.05, 5.0), (0.4, 1.0)])
def test_a_slow_api_server_gets_fewer_rewrites(
    monkeypatch: pytest.MonkeyPatch, write_s: float, per_second: float
) -> None:
    monkeypatch.setattr("coda_extender.planner.reason_writer.is_waiting", lambda _: True)

    async def rewrites() -> int:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        json_by_id: dict[JobId, Json] = {
            job: {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Queued"}}
            for job in JOBS
        }
        state = SimpleNamespace(job_json_by_id=json_by_id, job=lambda job: job)
        slow = Slow(write_s, json_by_id)
        writer = ReasonWriter(cast(StatusWriter, slow), cast(ClusterState, state), Metrics(), at_once=8)
        running = asyncio.create_task(writer.run())
        first, moment = 0, 0
        while moment < 2 * LASTS_S:  # its first half: the first reasons, and until the average is known
            reason = WaitReason(code=WaitCode.INSUFFICIENT_GPUS, message="short", numbers={"free": moment})
            writer.change_refusals(ChangedRefusals(groups=(RefusedAlike(1, reason, JOBS),)))
            first = slow.written if moment == LASTS_S else first
            moment += 1
            await asyncio.sleep(1.0)
        running.cancel()
        return slow.written - first

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found = runner.run(rewrites())
    # Half of the notices turn out needless: they take from the rate, and say nothing of what a write takes.
    assert found == pytest.approx(LASTS_S * per_second / 2, rel=0.25)
