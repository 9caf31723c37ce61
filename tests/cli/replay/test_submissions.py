import time
from dataclasses import replace

import pytest

from coda.errors import InvalidInput
from coda_cli.replay.submissions import (
    Sent,
    Submission,
    check_ready,
    creating,
    name_from_job_id,
    names_by_job_id,
    submit_all,
)
from coda_sim.traces import RecordedStatus
from tests.cli.worlds import MANNER, Api, gang, job_json, serving, submissions


@pytest.mark.parametrize(
    ("job_id", "name"),
    [
        ("hv582026", "hv582026"),
        ("openb-pod-0027", "openb-pod-0027"),
        ("Job_7/a", "job-7-a"),
        ("42", "j-42"),
        ("--", "j"),
        ("Zoë", "zo"),
        ("x" * 80, "x" * 63),
        ("x" * 62 + "-y", "x" * 62),
    ],
)
def test_job_ids_become_names_the_api_server_takes(job_id: str, name: str) -> None:
    assert name_from_job_id(job_id) == name


def test_ids_that_would_share_a_name_are_told_apart_the_same_way_every_time() -> None:
    names = names_by_job_id(["a.b", "a-b", "c"])
    assert names["c"] == "c"
    assert len(set(names.values())) == 3
    assert names == names_by_job_id(["c", "a-b", "a.b"])
    assert all(len(name) <= 63 for name in names_by_job_id(["y" * 70, "y" * 71]).values())


def test_a_gang_becomes_a_training_job_due_at_its_moment() -> None:
    first, second = submissions(
        gang("hv1", submit_s=1000, line=7), gang("hv2", gpus=16, replicas=2, submit_s=1500, duration_s=90)
    )
    assert (first.at_s, second.at_s) == (0.0, 5.0)
    assert second.manifest == {
        "apiVersion": "coda.scheduler/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "name": "hv2",
            "namespace": "default",
            "labels": {"app.kubernetes.io/managed-by": "coda-replay", "app.kubernetes.io/instance": "run-1"},
            "annotations": {"trace-row": "jobs.csv:2", "trace-job-id": "hv2"},
        },
        "spec": {
            "replicas": 2,
            "gpusPerReplica": 8,
            "cpusPerReplica": 4,
            "template": {
                "metadata": {
                    "annotations": {
                        "sim.coda.scheduler/run-seconds": "0.900000",
                        "sim.coda.scheduler/run-from": "placement",
                    }
                },
                "spec": {
                    "terminationGracePeriodSeconds": 2,
                    "containers": [{"name": "main", "image": "busybox", "command": ["sleep", "0.900000"]}],
                },
            },
        },
    }
    assert first.manifest["metadata"]["annotations"]["trace-row"] == "jobs.csv:7"


def test_recorded_failures_fail_only_where_that_is_asked_for() -> None:
    failed = gang("hv1", status=RecordedStatus.FAILED)
    (usual,) = submissions(failed)
    assert not usual.expects_failure
    assert "retries" not in usual.manifest["spec"]
    manner = type(MANNER)(namespace="default", run="r", speed=100.0, image="busybox", with_failures=True)
    (failing,) = submissions(failed, manner=manner)
    assert failing.expects_failure
    assert failing.manifest["spec"]["retries"] == 0
    template = failing.manifest["spec"]["template"]
    assert template["metadata"]["annotations"]["sim.coda.scheduler/exit-code"] == "1"
    assert template["spec"]["containers"][0]["command"] == ["sh", "-c", "sleep 0.600000; exit 1"]


async def test_every_job_is_created_and_none_before_its_moment() -> None:
    api, sent = Api(), dict[str, Sent]()
    jobs = submissions(*[gang(f"hv{number}", submit_s=number) for number in range(60)])
    async with serving(api) as client:
        start_s = time.time()
        await submit_all(
            creating(client), jobs, start_s=start_s, record=lambda one, done: sent.update({one.name: done})
        )
    assert set(api.jobs) == set(sent) == {f"hv{number}" for number in range(60)}
    assert all(done.sent_s >= done.planned_s for done in sent.values())
    assert sent["hv59"].planned_s == pytest.approx(start_s + 0.59)


async def test_a_job_is_sent_once_the_one_before_it_is_in_the_queue() -> None:
    api, queue = Api(), list[str]()
    jobs = submissions(gang("hv1"), gang("hv2"), gang("hv3"))

    async def queued(submission: Submission) -> None:
        while submission.name not in api.jobs:
            api.created.clear()
            await api.created.wait()
        queue.append(submission.name)
        assert list(api.jobs) == queue

    async with serving(api) as client:
        await submit_all(creating(client), jobs, start_s=time.time(), record=lambda _, __: None, queued=queued)
    assert queue == ["hv1", "hv2", "hv3"]


async def test_a_late_submission_says_how_late() -> None:
    api, sent = Api(), list[Sent]()
    async with serving(api) as client:
        await submit_all(
            creating(client), submissions(gang()), start_s=time.time() - 5.0, record=lambda _, done: sent.append(done)
        )
    assert sent[0].lag_s >= 5.0


async def test_an_outage_is_waited_for_and_an_object_from_an_unanswered_try_is_ours() -> None:
    api, sent = Api(), dict[str, Sent]()
    api.answers = [(503, "ServiceUnavailable", "starting")]
    jobs = submissions(gang("hv1"))
    async with serving(api) as client:
        await submit_all(
            creating(client), jobs, start_s=time.time(), record=lambda one, done: sent.update({one.name: done})
        )
        assert sent["hv1"].refusal is None
        api.answers = [(500, "InternalError", "lost the answer")]
        await submit_all(
            creating(client), jobs, start_s=time.time(), record=lambda one, done: sent.update({one.name: done})
        )
    assert sent["hv1"].refusal is None


async def test_what_the_api_server_refuses_keeps_its_sentence_and_stops_nobody_else() -> None:
    api, sent = Api(), dict[str, Sent]()
    api.answers = [(403, "Forbidden", "no more TrainingJobs for you")]
    jobs = submissions(gang("hv1"), gang("hv2", submit_s=10))
    async with serving(api) as client:
        await submit_all(
            creating(client), jobs, start_s=time.time(), record=lambda one, done: sent.update({one.name: done})
        )
    assert sent["hv1"].refusal == "no more TrainingJobs for you"
    assert sent["hv2"].refusal is None
    assert set(api.jobs) == {"hv2"}


async def test_names_of_an_earlier_replay_are_refused_before_anything_is_created() -> None:
    api = Api()
    await api.put(job_json("hv2"), "ADDED")
    async with serving(api) as client:
        await check_ready(client, "default", submissions(gang("hv1")))
        with pytest.raises(InvalidInput, match="namespace default already has 1 TrainingJob with names of this trace"):
            await check_ready(client, "default", submissions(gang("hv1"), gang("hv2")))
    assert set(api.jobs) == {"hv2"}


async def test_with_a_namespace_per_user_only_equal_names_of_one_namespace_are_refused() -> None:
    api = Api()
    await api.put(job_json("hv2"), "ADDED")
    (one,) = submissions(gang("hv2"))
    other = replace(one, manifest=one.manifest | {"metadata": one.manifest["metadata"] | {"namespace": "another"}})
    async with serving(api) as client:
        await check_ready(client, "", [other])
        with pytest.raises(InvalidInput, match=r"^the cluster already has 1 TrainingJob .*kubectl delete tj -A -l"):
            await check_ready(client, "", [one])


async def test_a_namespace_that_takes_no_jobs_is_refused_before_anything_is_created() -> None:
    api = Api()
    api.answers = [(404, "NotFound", 'namespaces "default" not found')]
    async with serving(api) as client:
        with pytest.raises(InvalidInput, match='in namespace default: namespaces "default" not found'):
            await check_ready(client, "default", submissions(gang()))
        await check_ready(client, "default", submissions(gang()))
    assert api.jobs == {}
