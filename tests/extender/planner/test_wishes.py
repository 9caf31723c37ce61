"""Running jobs that want other cores, and the planner that answers them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from coda.allocator import Tuning, TuningPhase
from coda.errors import Outage
from coda.model.job import Wish
from coda.policy import PolicyConfig
from coda_extender.settings import read_settings
from coda_kube.objects.json_types import Json
from coda_kube.objects.tuning_status import tuning_json
from tests.extender.deciders import InProcess
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import (
    JOBS,
    NODES,
    PODS,
    Item,
    given_up,
    job_json,
    node_json,
    placement,
    pod_json,
    rank_json,
)
from tests.extender.replicas import Replica, placement_of, replica, state_of, status


@pytest.fixture
async def api() -> FakeApi:
    return FakeApi()


def wish_json(cores: int, sequence: int = 1, *, behind_s: float = 0.0) -> Json:
    """Made now, by a clock that is behind."""
    now_s = time.time() - behind_s
    wish = Wish(sequence=sequence, cores=cores, since_s=now_s, deadline_s=now_s + 60.0)
    return tuning_json(Tuning(attempt=1, phase=TuningPhase.WISHING, wish=wish))


def running_json(name: str, *nodes: str, **more: Any) -> Item:
    """A job of 4 cores per rank whose cores Coda finds; it runs."""
    item = job_json(name, replicas=len(nodes), phase="Running", placement=placement(*nodes, plan=f"of-{name}"), **more)
    item["spec"]["cpusPerReplica"] = "auto"
    return item


def set_running(api: FakeApi, name: str, *nodes: str, **more: Any) -> None:
    api.set(JOBS, running_json(name, *nodes, **more))
    for rank, node in enumerate(nodes):
        api.set(PODS, rank_json(name, rank, node, node=node, plan=f"of-{name}"))


def wish(api: FakeApi, name: str, cores: int, sequence: int = 1, *, behind_s: float = 0.0) -> None:
    tuning = wish_json(cores, sequence, behind_s=behind_s)
    api.change(f"{JOBS}/{name}", lambda item: item["status"].update(tuning=tuning))


def grant_of(api: FakeApi, name: str) -> Json:
    return placement_of(api, name).get("grant") or {}


def placements_written(api: FakeApi, name: str) -> list[Json]:
    return [call.body["status"]["placement"] for call in api.writes() if f"/{name}/" in call.path]


async def test_a_wish_is_granted_by_one_write_that_leaves_the_placement_as_it_was(api: FakeApi) -> None:
    for name in ("n1", "n2"):
        api.set(NODES, node_json(name))
    set_running(api, "gang", "n1", "n2")
    async with replica(api) as one:
        wish(api, "gang", 12)
        await api.until(lambda: bool(grant_of(api, "gang")))
        assert one.count("coda_planner_answered_wishes_total", answer="Granted") == 1
    (written,) = placements_written(api, "gang")
    grant = written.pop("grant")
    assert written == placement("n1", "n2", plan="of-gang")
    assert (grant["state"], grant["sequence"], grant["coresPerReplica"]) == ("Granted", 1, 12)


async def test_a_refused_wish_says_why_and_what_could_be_had(api: FakeApi) -> None:
    api.set(NODES, node_json("n1", cpu=10))
    set_running(api, "gang", "n1")
    async with replica(api) as one:
        wish(api, "gang", 12)
        await api.until(lambda: bool(grant_of(api, "gang")))
        assert one.count("coda_planner_answered_wishes_total", answer="InsufficientCPU") == 1
    grant = grant_of(api, "gang")
    assert {name: grant[name] for name in ("state", "mostCores", "code", "message")} == {
        "state": "Refused",
        "mostCores": 10,
        "code": "InsufficientCPU",
        "message": "needs 8 more cores on node n1, which has 6 free cores",
    }


async def test_granted_growth_is_withheld_from_jobs_and_foreign_pods(api: FakeApi) -> None:
    api.set(NODES, node_json("n1", gpus=16, cpu=12))
    set_running(api, "gang", "n1")
    async with replica(api) as one:
        wish(api, "gang", 12)
        await api.until(lambda: bool(grant_of(api, "gang")))
        api.set(JOBS, job_json("waiting"))
        await api.until(lambda: status(api, "waiting").get("pending", {}).get("code") == "InsufficientCPU")
        assert one.ask(pod_json("foreign", cpu="1"), ["n1"]).passed == []


async def test_a_pod_that_passed_its_filter_as_the_planner_thought_keeps_a_grant_back(api: FakeApi) -> None:
    """Both would not fit: the wish stays open until the pod has landed elsewhere, or nowhere."""
    api.set(NODES, node_json("n1", cpu=12))
    set_running(api, "gang", "n1")
    foreign, ones, passed = api.set(PODS, pod_json("foreign", cpu="1")), list[Replica](), list[str]()

    async def start() -> InProcess:
        return InProcess(PolicyConfig(), lambda: passed.extend(ones[0].ask(foreign, ["n1"]).passed))

    async with replica(api, start=start, takeover_limit_s=0.0) as one:
        ones.append(one)
        await api.until(one.planner.leads)
        wish(api, "gang", 12)
        await api.until(lambda: passed == ["n1"])
        api.set(JOBS, job_json("sign", replicas=9))
        await api.until(lambda: "pending" in status(api, "sign"))  # a cycle has gone by
        assert placements_written(api, "gang") == []
        api.change(f"{PODS}/foreign", lambda item: item.update(status=given_up()))
        await api.until(lambda: grant_of(api, "gang").get("coresPerReplica") == 12)


async def test_what_a_shrink_frees_is_taken_once_the_kubelet_reports_it(api: FakeApi) -> None:
    api.set(NODES, node_json("n1", gpus=16, cpu=4))
    set_running(api, "gang", "n1")
    api.set(JOBS, job_json("waiting"))
    api.change(f"{JOBS}/waiting", lambda item: item["status"]["request"]["resources"].update(cpu="2"))
    async with replica(api):
        wish(api, "gang", 2)
        await api.until(lambda: bool(grant_of(api, "gang")))

        def patched(item: Json) -> None:
            item["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
            item["status"]["containerStatuses"] = [{"name": "main", "allocatedResources": {"cpu": "4"}}]

        api.change(f"{PODS}/gang-1-0", patched)
        await api.until(lambda: status(api, "waiting").get("pending", {}).get("code") == "InsufficientCPU")

        def reported(item: Json) -> None:
            item["status"]["containerStatuses"] = [{"name": "main", "allocatedResources": {"cpu": "2"}}]

        api.change(f"{PODS}/gang-1-0", reported)
        await api.until(lambda: state_of(api, "waiting") == "Released")


async def test_growth_of_a_suspended_job_is_kept_while_its_pods_live(api: FakeApi) -> None:
    api.set(NODES, node_json("n1", cpu=8))
    set_running(api, "gang", "n1")
    async with replica(api) as one:
        wish(api, "gang", 8)
        await api.until(lambda: bool(grant_of(api, "gang")))
        api.change(f"{JOBS}/gang", lambda item: item["spec"].update(suspend=True))
        api.set(JOBS, job_json("sign", replicas=9))
        await api.until(lambda: "pending" in status(api, "sign"))  # a cycle has gone by
        assert one.ask(pod_json("foreign", cpu="1"), ["n1"]).passed == []
        api.remove(f"{PODS}/gang-1-0")
        await api.until(lambda: one.ask(pod_json("foreign", cpu="1"), ["n1"]).passed == ["n1"])


async def test_growth_that_ended_is_kept_until_the_watch_of_pods_shows_it(api: FakeApi) -> None:
    api.set(NODES, node_json("n1", cpu=8))
    set_running(api, "gang", "n1")
    async with replica(api) as one:
        wish(api, "gang", 8)
        await api.until(lambda: bool(grant_of(api, "gang")))
        since = grant_of(api, "gang")["time"]
        done = {"attempt": 1, "sequence": 1, "state": "Done", "wanted": 8, "coresPerReplica": 8, "since": since}
        api.change(f"{JOBS}/gang", lambda item: item["status"].update(resize=done))
        api.set(JOBS, job_json("sign", replicas=9))
        await api.until(lambda: "pending" in status(api, "sign"))  # a cycle has gone by
        assert one.ask(pod_json("foreign", cpu="1"), ["n1"]).passed == []


async def test_the_next_wish_waits_for_the_end_of_the_resize_and_counts_from_there(api: FakeApi) -> None:
    api.set(NODES, node_json("n1", cpu=8))
    set_running(api, "gang", "n1")
    async with replica(api):
        wish(api, "gang", 8)
        await api.until(lambda: bool(grant_of(api, "gang")))
        wish(api, "gang", 6, sequence=2)
        api.set(JOBS, job_json("sign", replicas=9))
        await api.until(lambda: "pending" in status(api, "sign"))  # a cycle has gone by
        assert grant_of(api, "gang")["sequence"] == 1
        since = grant_of(api, "gang")["time"]
        resize = {"attempt": 1, "sequence": 1, "state": "Refused", "wanted": 8, "coresPerReplica": 4, "since": since}
        api.change(f"{JOBS}/gang", lambda item: item["status"].update(resize=resize))
        await api.until(lambda: grant_of(api, "gang").get("sequence") == 2)
    assert (grant_of(api, "gang")["state"], grant_of(api, "gang")["coresPerReplica"]) == ("Granted", 6)


async def test_an_answer_that_was_lost_is_given_by_the_next_leader(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    set_running(api, "gang", "n1", tuning=wish_json(12))
    broken = True

    def fail(call: Call) -> None:
        if call.verb == "apply" and broken:
            raise Outage("HTTP 503: overloaded")

    api.before = fail
    async with replica(api) as one:
        await api.until(lambda: one.count("coda_planner_refused_writes_total", reason="slow") > 0)
    broken = False
    async with replica(api, "two"):
        await api.until(lambda: grant_of(api, "gang").get("coresPerReplica") == 12)


async def test_a_wish_of_an_agent_whose_clock_is_behind_is_granted(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    set_running(api, "gang", "n1")
    api.set(JOBS, job_json("sign", replicas=9))
    async with replica(api):
        await api.until(lambda: "pending" in status(api, "sign"))  # it has seen the gang
        wish(api, "gang", 12, behind_s=300.0)
        await api.until(lambda: bool(grant_of(api, "gang")))
    assert grant_of(api, "gang")["state"] == "Granted"


async def test_a_planner_that_begins_refuses_a_wish_that_nobody_may_wait_for_any_more(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    set_running(api, "gang", "n1", tuning=wish_json(12, behind_s=300.0))
    async with replica(api):
        await api.until(lambda: bool(grant_of(api, "gang")))
        assert grant_of(api, "gang")["code"] == "Expired"
        wish(api, "gang", 12, sequence=2, behind_s=300.0)
        await api.until(lambda: grant_of(api, "gang")["sequence"] == 2)
    assert grant_of(api, "gang")["state"] == "Granted"


async def test_a_job_that_says_how_many_cores_it_wants_gets_no_others(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    set_running(api, "gang", "n1", tuning=wish_json(12))
    api.change(f"{JOBS}/gang", lambda item: item["spec"].update(cpusPerReplica=4))
    async with replica(api):
        api.set(JOBS, job_json("sign", replicas=9))
        await api.until(lambda: "pending" in status(api, "sign"))
    assert placements_written(api, "gang") == []


async def test_an_edit_in_the_meantime_makes_a_grant_stale(api: FakeApi) -> None:
    """The job was suspended while the planner thought: nothing is granted to it."""
    api.set(NODES, node_json("n1"))
    set_running(api, "gang", "n1")

    def suspend(call: Call) -> None:
        if call.verb == "apply" and "/gang/" in call.path:
            api.before = None
            api.change(f"{JOBS}/gang", lambda item: item["spec"].update(suspend=True))

    api.before = suspend
    async with replica(api) as one:
        wish(api, "gang", 12)
        await api.until(lambda: one.count("coda_planner_refused_writes_total", reason="conflict") == 1)
        api.set(JOBS, job_json("sign", replicas=9))
        await api.until(lambda: "pending" in status(api, "sign"))
    assert grant_of(api, "gang") == {}


def test_the_deadline_of_growth_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODA_RESIZE_DEADLINE_S", "7.5")
    assert read_settings().policy().resize_deadline_s == 7.5
