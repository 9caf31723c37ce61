"""A rank fails: its log is read, the status says why, and the class of the reason decides what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from coda.errors import Outage
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER
from coda_operator.reconcile.failures.rank_logs import ALL_LIMIT_S
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches

TRACEBACK = (
    b'2026-01-01T00:00:0%d.0Z Traceback (most recent call last):\n2026-01-01T00:00:0%d.0Z   File "t.py", line 1\n'
)


def printed(text: str, second: int = 1) -> bytes:
    return TRACEBACK % (second, second) + f"2026-01-01T00:00:0{second}.0Z {text}\n".encode()


def ends(code: int, *, attempts: int = 99) -> Callable[[int, int], int | None]:
    """Rank 1 ends with `code` in the first attempts; the others run until they are ended, then all succeed."""
    return lambda attempt, rank: (code if rank == 1 else None) if attempt <= attempts else 0


async def run(log: bytes, until: str, code: int = 1, *, attempts: int = 99, attempt: int = 1) -> Json:
    api = FakeCluster()
    api.log_of = lambda pod: log if pod.endswith("-1") else b""
    async with rest_of_cluster(api, exit_code=ends(code, attempts=attempts)), operator(api):
        job = api.submit()
        return await reaches(api, job, until, attempt=attempt)


async def test_a_deterministic_failure_stops_at_once_and_says_why() -> None:
    status = await run(printed("ModuleNotFoundError: No module named 'apex'"), "Failed")
    assert (status["attempt"], status["failures"], status["reason"]) == (1, 1, "RankFailed")
    assert status["failure"] == {
        "attempt": 1,
        "reason": "Import error",
        "category": "IF/U",
        "explicit": True,
        "rank": 1,
        "node": status["placement"]["nodes"][1],
        "evidence": "ModuleNotFoundError: No module named 'apex'",
        "advice": "add the package to the image, or mend PYTHONPATH and its version",
        "retry": "no",
        "decision": "it is not tried again: add the package to the image, or mend PYTHONPATH and its version; then "
        "delete it and submit it again",
        "repeats": 1,
        "time": status["completionTime"],
        "signature": "Import error: modulenotfounderror: no module named 'apex'",
    }


async def test_an_infrastructure_failure_goes_to_other_nodes_and_is_not_counted() -> None:
    log = printed("RuntimeError: CUDA error: uncorrectable ECC error encountered")
    status = await run(log, "Queued", attempts=1, attempt=2)
    assert (status["failures"], status["disruptions"]) == (0, 1)
    assert [entry["name"] for entry in status["avoidNodes"]] == [status["failure"]["node"]]
    assert (await run(log, "Succeeded", attempts=1, attempt=2))["failure"]["reason"] == "GPU ECC error"


async def test_the_status_has_how_far_a_job_came_before_a_failure_that_is_not_counted() -> None:
    api = FakeCluster()
    api.log_of = lambda pod: printed("RuntimeError: CUDA error: uncorrectable ECC error encountered")
    async with rest_of_cluster(api, exit_code=ends(1, attempts=1), run_s=lambda attempt, rank: 30.0), operator(api):
        job = api.submit()
        await reaches(api, job, "Running")
        told = {"attempt": 1, "step": 70, "savedStep": 50}
        api.change(job, lambda item: item["status"].update(progress=told))
        status = await reaches(api, job, "Queued", attempt=2)
    assert status["stall"].pop("ranSeconds") > 0
    assert status["stall"] == {"failures": 1, "counted": 0, "row": 1, "step": 70, "savedStep": 50}


async def test_a_crash_is_tried_once_more() -> None:
    status = await run(printed("Segmentation fault (core dumped)"), "Failed", code=139, attempt=2)
    assert (status["failures"], status["failure"]["repeats"]) == (2, 2)


async def test_a_failure_without_a_signature_is_tried_as_often_as_allowed() -> None:
    status = await run(b"epoch 1\n", "Failed", attempt=4)
    assert (status["failures"], status["failure"]["reason"]) == (4, "No signature")


async def test_the_rank_that_failed_first_is_found_among_those_that_still_run() -> None:
    """The victim is told of first. The log of the other rank has the cause, and is older."""
    api = FakeCluster()
    victim = printed("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:8", 9)
    api.log_of = lambda pod: victim if pod.endswith("-1") else printed("KeyError: 'lr'", 2)
    async with rest_of_cluster(api, exit_code=ends(1)), operator(api):
        status = await reaches(api, api.submit(), "Failed")
    assert (status["failure"]["reason"], status["failure"]["rank"]) == ("Semantic error", 0)


def forbids(pod: str) -> bytes:
    raise Rejected(403, "Forbidden", "pods is forbidden: cannot get resource pods/log")


def is_away(pod: str) -> bytes:
    raise Outage("no answer within 10 s")


@pytest.mark.parametrize(
    ("log_of", "said"),
    [
        pytest.param(forbids, "the log of rank 1 could not be read: pods is forbidden: cannot get", id="403"),
        pytest.param(is_away, "the log of rank 1 could not be read: no answer within 10 s", id="outage"),
    ],
)
async def test_a_log_that_cannot_be_read_is_said_and_holds_up_nothing(
    log_of: Callable[[str], bytes], said: str
) -> None:
    api = FakeCluster()
    api.log_of = log_of
    async with rest_of_cluster(api, exit_code=ends(137)), operator(api):
        status = await reaches(api, api.submit(), "Failed", attempt=2)
    assert status["failure"]["unread"].startswith(said)
    assert said in status["message"]
    assert (status["failure"]["reason"], status["failure"]["evidence"]) == ("CPU out of memory", "exit code 137")


class SilentLogs(FakeCluster):
    """Its kubelets never send a log."""

    async def tail(self, path: str, query: Mapping[str, str], *, keep_bytes: int, limit_s: float) -> bytes:
        await asyncio.sleep(1e6)
        return b""


async def test_logs_that_never_come_hold_up_a_job_for_a_bounded_time() -> None:
    api = SilentLogs()
    async with rest_of_cluster(api, exit_code=ends(1)), operator(api):
        job = api.submit()
        await api.until(lambda: "failure" in api.status(job), timeout_s=3 * ALL_LIMIT_S)
        assert api.status(job)["failure"]["unread"] == "the log of rank 1 could not be read: no time was left"


def fails_by_log(api: FakeCluster, log: bytes) -> None:
    api.log_of = lambda pod: log if pod.endswith("-1") else b""


async def test_three_stopped_jobs_of_a_user_stop_the_next_at_its_first_failure_also_after_a_restart() -> None:
    """The new operator knows nothing but the objects. Another user's job is tried as its class allows."""
    api = FakeCluster()
    fails_by_log(api, printed("Segmentation fault (core dumped)"))
    async with rest_of_cluster(api, exit_code=ends(139)):
        async with operator(api):
            for name in ("a", "b", "c"):
                assert (await reaches(api, submitted(api, name, "ann"), "Failed", attempt=2))["failures"] == 2
        async with operator(api):
            fourth = await reaches(api, submitted(api, "d", "ann"), "Failed")
            other = await reaches(api, submitted(api, "e", "bob"), "Failed", attempt=2)
    assert (fourth["attempt"], fourth["failure"]["cutShort"]) == (1, True)
    assert fourth["failure"]["alike"] == {"jobs": 3, "names": ["default/c", "default/b", "default/a"]}
    assert "3 other jobs of this user stopped so within a day" in fourth["message"]
    assert "alike" not in other["failure"]


async def test_a_user_who_deletes_the_failed_jobs_starts_afresh() -> None:
    api = FakeCluster()
    fails_by_log(api, printed("Segmentation fault (core dumped)"))
    async with rest_of_cluster(api, exit_code=ends(139)), operator(api):
        paths = [submitted(api, name, "ann") for name in ("a", "b", "c")]
        for path in paths:
            await reaches(api, path, "Failed", attempt=2)
        await api.delete(paths[0])
        await api.until(lambda: not api.exists(paths[0]), timeout_s=60)
        fourth = await reaches(api, submitted(api, "d", "ann"), "Failed", attempt=2)
    assert (fourth["failure"]["alike"]["jobs"], "cutShort" in fourth["failure"]) == (2, False)


def submitted(api: FakeCluster, name: str, user: str) -> str:
    path = api.submit(name)
    api.change(path, lambda job: job["metadata"].setdefault("annotations", {}).update({ANNOTATION_USER: user}))
    return path
