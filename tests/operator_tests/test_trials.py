"""Trials of gangs, by an operator that may be killed after every write of it. Time is virtual."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from typing import Any

import pytest

from coda.model.trial_run import TRIAL_TAINT
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_ATTEMPT, LABEL_RANK
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from coda_operator.trials.tenants import TENANTS_PATH
from tests.operator_tests.fake_cluster import FakeCluster, clock
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_crashes import run_until_killed
from tests.operator_tests.test_delays import Kept, booked
from tests.operator_tests.test_lost_ranks import reaches
from tests.operator_tests.test_rank_logs import printed

TRIAL: Json = {"runSeconds": 300, "waitSeconds": 60}
BROKEN = printed("ModuleNotFoundError: No module named 'apex'")
NEVER_ENDS: Any = lambda attempt, rank: None  # noqa: E731 - reads as a value
TRIAL_NEVER_ENDS: Any = lambda attempt, rank: None if attempt == 1 else 0  # noqa: E731
TRIAL_FAILS: Any = lambda attempt, rank: 1 if attempt == 1 else 0  # noqa: E731


def variables(pod: Json) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}


async def test_the_trial_is_one_rank_with_one_gpu_and_a_world_of_its_own_and_then_comes_the_gang() -> None:
    api = FakeCluster()
    async with (
        rest_of_cluster(api, exit_code=TRIAL_NEVER_ENDS),
        operator(api, trial_nodes={"pool": "trials"}) as process,
    ):
        job = api.submit(replicas=4, gpusPerReplica=8, cpusPerReplica=60, trial=TRIAL)
        status = await reaches(api, job, "Running")
        (pod,) = api.pods().values()
        main = pod["spec"]["containers"][0]
        assert main["resources"]["requests"] == {"cpu": "4", "nvidia.com/gpu": "1"}  # as the placement says
        assert status["request"]["resources"] == {"cpu": "8", "nvidia.com/gpu": "1"}  # an eighth of 60, rounded up
        world = {name: variables(pod)[name] for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "CODA_TRIAL")}
        assert world == {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "localhost", "CODA_TRIAL": "1"}
        assert (variables(pod)["PET_NNODES"], variables(pod)["PET_NPROC_PER_NODE"]) == ("1", "1")
        assert pod["spec"]["nodeSelector"] == {"pool": "trials"}
        assert {"key": TRIAL_TAINT, "operator": "Exists"} in pod["spec"]["tolerations"]
        assert status["trial"] == {"attempt": 1, "since": status["queuedTime"]}
        assert (status["gpus"], status["cores"]) == (32, 8)

        await asyncio.sleep(3)
        api.change(job, lambda item: item["status"].update(progress={"attempt": 1, "step": 1}))
        status = await reaches(api, job, "Succeeded", attempt=2)
        assert status["trial"]["outcome"] == "Passed"
        assert (status["failures"], status["disruptions"], status["cores"]) == (0, 0, 240)
        gang = [pod for pod in api.pods().values() if pod["metadata"]["labels"][LABEL_ATTEMPT] == "2"]
        assert [variables(pod)["WORLD_SIZE"] for pod in gang] == ["4"] * 4
        assert all("CODA_TRIAL" not in variables(pod) and "nodeSelector" not in pod["spec"] for pod in gang)
        assert process.count("coda_operator_trials_total", outcome="Passed") == 1
        assert process.count("coda_operator_trial_gpu_seconds_total") == status["trial"]["seconds"]


async def test_a_deterministic_failure_ends_the_job_with_its_cause_before_it_holds_a_gang() -> None:
    api = FakeCluster()
    api.log_of = lambda pod: BROKEN
    async with rest_of_cluster(api, exit_code=TRIAL_FAILS), operator(api):
        status = await reaches(api, api.submit(replicas=4, trial=TRIAL), "Failed")
        assert (status["attempt"], status["reason"], status["failures"]) == (1, "TrialFailed", 1)
        assert status["failure"]["evidence"] == "ModuleNotFoundError: No module named 'apex'"
        assert (status["failure"]["reason"], status["failure"]["rank"]) == ("Import error", 0)
        assert status["trial"]["outcome"] == "Failed"
        assert {pod["metadata"]["labels"][LABEL_RANK] for _, pod in api.history("pods")} == {"0"}


@pytest.mark.parametrize(
    ("log", "retries"),
    [
        pytest.param(b"", 0, id="nobody knows why"),
        pytest.param(printed("RuntimeError: CUDA error: uncorrectable ECC error encountered"), 0, id="a broken GPU"),
        pytest.param(printed("torch.cuda.OutOfMemoryError: CUDA out of memory."), 0, id="too large for one GPU"),
        pytest.param(printed("AssertionError: world size must be 4"), 0, id="it wants its gang"),
    ],
)
async def test_what_the_gang_may_not_fail_of_starts_the_gang_uncounted(log: bytes, retries: int) -> None:
    api = FakeCluster()
    api.log_of = lambda pod: log
    async with rest_of_cluster(api, exit_code=TRIAL_FAILS), operator(api):
        job = api.submit(replicas=4, retries=retries, trial=TRIAL)
        status = await reaches(api, job, "Succeeded", attempt=2)
        assert (status["failures"], status["trial"]["outcome"]) == (0, "Unclear")
        assert "failure" not in status


async def test_a_trial_that_hangs_is_over_with_its_time() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=TRIAL_NEVER_ENDS), operator(api):
        status = await reaches(api, api.submit(replicas=2, trial=TRIAL | {"runSeconds": 30}), "Succeeded", attempt=2)
        assert status["trial"]["outcome"] == "TimeOver"
        assert 30 <= status["trial"]["seconds"] <= 32


async def test_without_a_gpu_for_it_the_gang_starts_untried_and_says_so() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, plans=False) as rest, operator(api):
        job = api.submit(replicas=2, trial=TRIAL)
        queued_s = clock()
        await api.until(lambda: api.status(job).get("attempt") == 2, timeout_s=600)
        assert 60 <= clock() - queued_s <= 62
        assert api.status(job)["reason"] == "TrialSkipped"
        assert "no GPU was free for it within 60 s; the gang waits untried" in api.status(job)["message"]
        rest.plans = True
        rest.act()
        status = await reaches(api, job, "Succeeded", attempt=2)
        assert (status["trial"]["outcome"], "seconds" in status["trial"]) == ("Skipped", False)


def span_s(first: str, last: str) -> int:
    """Both ends of a span are cut to whole seconds, as the account cuts them."""
    return int(seconds_from_time(last)) - int(seconds_from_time(first))


def at_most_four_gpus(pod: Json) -> None:
    """As a LimitRange of the namespace."""
    if int(pod["spec"]["containers"][0]["resources"]["requests"].get("nvidia.com/gpu", "0")) > 4:
        raise Rejected(403, "Forbidden", "maximum nvidia.com/gpu usage per Container is 4, but limit is 8")


def deny(pod: Json) -> None:
    raise Rejected(403, "Forbidden", 'admission webhook "p" denied the request: policy store is starting')


async def test_a_gang_that_is_never_admitted_is_refused_before_its_trial_and_again_after_an_edit() -> None:
    api = FakeCluster()
    api.admit = at_most_four_gpus
    async with rest_of_cluster(api, exit_code=NEVER_ENDS), operator(api):
        job = api.submit(replicas=2, gpusPerReplica=8, trial=TRIAL)
        for generation, gpus in ((1, 6), (2, 4)):
            status = await reaches(api, job, "Failed", observedGeneration=generation)
            assert status["reason"] == "TemplateRefused"
            assert "maximum nvidia.com/gpu usage per Container is 4" in status["message"]
            assert not api.history("pods")
            api.edit(job, gpusPerReplica=gpus)
        await reaches(api, job, "Running", attempt=1)
        assert len(api.pods()) == 1


async def test_a_template_that_is_mended_late_is_tried_and_its_users_time_is_booked_as_theirs() -> None:
    """Refused, edited in vain 600 s later, and mended after 600 s more: twice as long as a trial may wait."""
    api, kept = FakeCluster(), Kept()
    api.admit = at_most_four_gpus
    async with rest_of_cluster(api, exit_code=TRIAL_NEVER_ENDS), operator(api, store=kept):
        job = api.submit(replicas=2, trial=TRIAL)
        first = await reaches(api, job, "Failed")
        await asyncio.sleep(600)
        api.edit(job, retries=2)
        again = await reaches(api, job, "Failed", observedGeneration=2)
        assert booked(again) == {"Hold": span_s(first["queuedTime"], again["completionTime"])}
        await asyncio.sleep(600)
        api.admit = lambda pod: None
        api.edit(job, retries=3)
        status = await reaches(api, job, "Running", attempt=1)
        assert "outcome" not in status["trial"]
        assert status["trial"]["since"] == status["waitingSince"] > status["queuedTime"] == first["queuedTime"]
        assert status["delays"]["doing"] == "Waiting"
        assert abs(booked(status)["Hold"] - 1200) <= 2
        ended = await reaches(api, job, "Succeeded", attempt=2)
        await api.until(lambda: bool(kept.records) and kept.records[-1].attempt == 2, timeout_s=600.0)
    assert set(booked(ended)) <= {"Hold", "Trial", "Restart", "Coda"}
    assert sum(booked(ended).values()) == span_s(first["queuedTime"], ended["launchTime"])
    assert dict(kept.records[-1].waits) == {cause: float(seconds) for cause, seconds in booked(ended).items()}


async def test_a_waiting_trial_is_not_accepted_with_a_gang_that_an_edit_made_too_large() -> None:
    api = FakeCluster()
    api.admit = at_most_four_gpus
    async with rest_of_cluster(api, plans=False), operator(api):
        job = api.submit(replicas=2, gpusPerReplica=2, trial=TRIAL)
        await reaches(api, job, "Queued")
        api.edit(job, gpusPerReplica=8)
        assert (await reaches(api, job, "Failed", observedGeneration=2))["reason"] == "TemplateRefused"


async def test_a_gang_that_a_webhook_denies_for_a_while_as_its_trial_is_skipped_waits_on() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, plans=False) as rest, operator(api):
        job = api.submit(replicas=2, trial=TRIAL)
        await reaches(api, job, "Queued")
        api.admit = deny
        status = await reaches(api, job, "Queued", reason="PodRefused")
        assert status["attempt"] == 1
        assert "not accepted again yet" in status["message"]
        api.admit = lambda pod: None
        assert (await reaches(api, job, "Queued", attempt=2))["reason"] == "TrialSkipped"
        rest.plans = True
        rest.act()
        await reaches(api, job, "Succeeded", attempt=2)


@pytest.mark.parametrize("how", ["suspended", "deleted"])
async def test_a_job_that_is_suspended_or_deleted_takes_its_trial_away(how: str) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=NEVER_ENDS), operator(api):
        job = api.submit(replicas=2, trial=TRIAL)
        await reaches(api, job, "Running")
        if how == "deleted":
            api.end(job)
            await api.until(lambda: not api.exists(job) and not api.pods(), timeout_s=60)
            return
        api.edit(job, suspend=True)
        await api.until(lambda: api.status(job)["phase"] == "Suspended" and not api.pods(), timeout_s=60)
        api.edit(job, suspend=False)
        status = await reaches(api, job, "Running", attempt=2)
        assert (status["trial"]["attempt"], "outcome" in status["trial"]) == (2, False)
        assert len(api.pods()) == 1


async def test_an_edit_while_the_trial_waits_may_not_keep_the_place_of_a_smaller_job() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, plans=False), operator(api):
        job = api.submit(replicas=2, trial=TRIAL)
        first = (await reaches(api, job, "Queued"))["queuedTime"]
        await asyncio.sleep(5)
        api.edit(job, retries=1)
        assert (await reaches(api, job, "Queued", observedGeneration=2))["queuedTime"] == first
        api.edit(job, replicas=64)
        assert (await reaches(api, job, "Queued", observedGeneration=3))["queuedTime"] > first


NO_TRIAL: Json = {"runSeconds": 0, "waitSeconds": 300}
LARGER = [{"replicas": 5}, {"gpusPerReplica": 16, "cpusPerReplica": 120}, {"cpusPerReplica": 120}]
SMALLER = [{}, {"retries": 1}, {"replicas": 3}, {"cpusPerReplica": 56}]


@pytest.mark.parametrize(("edit", "keeps"), [(edit, edit in SMALLER) for edit in [*SMALLER, *LARGER]])
@pytest.mark.parametrize("when", ["its trial is taken back", "a trial is added", "its trial is over"])
async def test_only_what_enlarges_the_gang_costs_its_place_where_one_attempt_is_a_trial(
    when: str, edit: Json, keeps: bool
) -> None:
    api = FakeCluster()
    gang: Json = {"replicas": 4, "gpusPerReplica": 8, "cpusPerReplica": 60}
    is_over = when == "its trial is over"
    async with rest_of_cluster(api, exit_code=NEVER_ENDS, plans=is_over) as rest, operator(api):
        job = api.submit(trial=NO_TRIAL if when == "a trial is added" else TRIAL, **gang)
        first = await reaches(api, job, "Running" if is_over else "Queued")
        await asyncio.sleep(20)
        if is_over:
            rest.plans = False
            api.change(job, lambda item: item["status"].update(progress={"attempt": 1, "step": 1}))
            await api.until(lambda: api.status(job)["phase"] == "Restarting", timeout_s=600)
            api.edit(job, **{"retries": 7, **edit})
        else:
            api.edit(job, trial=NO_TRIAL if when == "its trial is taken back" else TRIAL, **edit)
        status = await reaches(api, job, "Queued", observedGeneration=2)
        assert ("outcome" in status.get("trial", {}), "trial" in status) == (is_over, when != "its trial is taken back")
        assert (status["queuedTime"] == first["queuedTime"]) is keeps


def tenant(name: str, *namespaces: str, **spec: object) -> Json:
    metadata = {"name": name, "creationTimestamp": time_from_seconds(1000.0)}
    return {"metadata": metadata, "spec": {"namespaces": list(namespaces), **spec}}


async def test_a_tenant_asks_for_trials_of_its_large_gangs_and_a_job_may_say_otherwise() -> None:
    api = FakeCluster()
    api.set(TENANTS_PATH, tenant("team", "default", trialsFromGPUs=8))
    async with rest_of_cluster(api, exit_code=NEVER_ENDS), operator(api):
        large, small = api.submit("large", replicas=2, gpusPerReplica=4), api.submit("small", gpusPerReplica=2)
        declined = api.submit("declined", trial={"runSeconds": 0, "waitSeconds": 300})
        for job, is_tried in ((large, True), (small, False), (declined, False)):
            assert ("trial" in await reaches(api, job, "Running")) is is_tried


async def tell(api: FakeCluster, story: list[int]) -> list[Json]:
    """A trial that hangs until its time is over, and its gang; by processes that live for so many writes each."""
    done = asyncio.Event()
    job = api.submit("job", replicas=3, trial={"runSeconds": 20, "waitSeconds": 300})

    async def user() -> None:
        await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=3600)
        assert (api.status(job)["attempt"], api.status(job)["failures"]) == (2, 0)
        assert api.status(job)["trial"]["outcome"] == "TimeOver"
        done.set()

    async with rest_of_cluster(api, exit_code=TRIAL_NEVER_ENDS):
        telling = asyncio.create_task(user())
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(telling.cancel)
            for last_write in [*story, 10_000]:
                if await run_until_killed(api, last_write, done):
                    break
            await telling
    return [pod for _, pod in api.history("pods")]


def check(states: list[Json]) -> None:
    """The trial has one pod, and is over before a rank of the gang runs. Nobody runs twice."""
    started: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    alive: dict[str, int] = {}
    for pod in states:
        labels, uid = pod["metadata"]["labels"], pod["metadata"]["uid"]
        attempt, rank = int(labels[LABEL_ATTEMPT]), int(labels[LABEL_RANK])
        if pod["status"]["phase"] == "Running":
            started[attempt, rank].add(uid)
            alive[uid] = attempt
        if pod["status"]["phase"] in ("Succeeded", "Failed") or pod["metadata"].get("stopped"):
            alive.pop(uid, None)
        assert len(set(alive.values())) <= 1, "the gang runs beside its trial"
    assert set(started) == {(1, 0), (2, 0), (2, 1), (2, 2)}
    assert all(len(uids) == 1 for uids in started.values())


WRITES = 22  # of the whole story, when nobody is killed


async def test_the_story_has_as_many_writes_as_these_tests_kill_at() -> None:
    api = FakeCluster()
    check(await tell(api, []))
    verbs = ("create", "patch", "apply", "delete")
    assert sum(call.verb in verbs and not call.path.endswith("/events") for call in api.calls) <= WRITES


@pytest.mark.parametrize("last_write", range(1, WRITES + 1))
async def test_killed_after_one_write(last_write: int) -> None:
    check(await tell(FakeCluster(), [last_write]))


@pytest.mark.parametrize("seed", range(10))
async def test_killed_again_and_again(seed: int) -> None:
    rng = random.Random(seed)
    check(await tell(FakeCluster(), [rng.randint(1, 4) for _ in range(30)]))
