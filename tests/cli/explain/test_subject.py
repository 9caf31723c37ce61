"""Names as `coda queue`, kubectl and people write them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from coda.errors import InvalidInput
from coda_cli.__main__ import command_line
from coda_cli.explain import explain_command
from coda_cli.explain.explain_command import explained
from coda_cli.explain.queue_command import read_queue
from coda_cli.explain.subject import Subject, subject_of
from coda_cli.permitted import PermittedLists
from coda_kube.objects.json_types import Json
from tests.cli.explain.test_explain import PENDING, gated
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, PODS, job_json


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train", Subject("own", "", "train")),
        ("tj/train", Subject("own", "", "train")),
        ("trainingjob.coda.scheduler/train", Subject("own", "", "train")),
        ("team/train", Subject("team", "", "train")),
        ("job/a", Subject("own", "job", "a")),
        ("Job/a", Subject("own", "job", "a")),
        ("job.batch/a", Subject("own", "job", "a")),
        ("replicaset.apps/a", Subject("own", "replicaset", "a")),
        ("pods/a", Subject("own", "pod", "a")),
        ("team/job/a", Subject("team", "job", "a")),
        ("team/workflow/a", Subject("team", "workflow", "a")),
        ("team/tj/train", Subject("team", "", "train")),
    ],
)
def test_names_are_read_as_they_are_written_elsewhere(text: str, expected: Subject) -> None:
    assert subject_of(text, "own") == expected


@pytest.mark.parametrize(
    "text", ["deployment/a", "deploy/a", "svc/a", "ds/a", "cj/a", "vc/a", "aq/a", "workflow.argoproj.io/a", "team/"]
)
def test_a_kind_that_is_never_in_the_queue_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="write NAME of a TrainingJob, or one of trainingjob, tj, job"):
        subject_of(text, "own")


async def test_every_name_that_the_queue_prints_can_be_asked_about() -> None:
    api = FakeApi()
    api.set(JOBS, job_json("train", pending=PENDING))
    for name, kind in (("a-1", "Job"), ("b-1", "Workflow"), ("bare", "")):
        api.set(PODS, gated(name, kind and name[0], kind or "Job"))
    names = [line.name for line in await read_queue(PermittedLists(api))]
    assert sorted(names) == ["default/job/a", "default/pod/bare", "default/train", "default/workflow/b"]
    for name in names:
        assert f"{name} waits" in (await explained(api, "elsewhere", name)).sentences[0]


def waiting(namespace: str) -> Json:
    job = job_json("train", pending=PENDING)
    job["metadata"]["namespace"] = namespace
    return job


@pytest.mark.parametrize("namespace", ["jobs", "pod", "rs", "tj", "ds", "services"])
async def test_a_namespace_may_be_called_as_a_kind_is(namespace: str) -> None:
    api, name = FakeApi(), f"{namespace}/train"
    api.set(JOBS.replace("/default/", f"/{namespace}/"), waiting(namespace))
    told = [await explained(api, own, name) for own in ("default", namespace)]
    told.append(await explained(api, namespace, name, is_given=True))  # -n
    assert all(f"{name} waits" in one.sentences[0] for one in told)
    with pytest.raises(InvalidInput):
        await explained(api, "default", name, is_given=True)
    with pytest.raises(InvalidInput):
        await explained(api, "default", f"{namespace}/other")


async def test_of_two_that_a_name_may_mean_the_other_is_named() -> None:
    api = FakeApi()
    api.set("/apis/batch/v1/namespaces/default/jobs", {"metadata": {"name": "train"}, "spec": {}})
    (alone,) = (await explained(api, "default", "jobs/train")).sentences
    api.set(JOBS.replace("/default/", "/jobs/"), waiting("jobs"))
    assert (await explained(api, "default", "jobs/train")).sentences == (
        alone,
        "There is a TrainingJob train in the namespace jobs, too: coda explain train -n jobs.",
    )
    assert (await explained(api, "default", "jobs/train", is_given=True)).sentences == (alone,)


@pytest.mark.parametrize("namespace", ["jobs", "ds"])
def test_the_namespace_may_be_said_twice(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connected(*_: object, **__: object) -> FakeApi:
        api = FakeApi()
        api.set(JOBS.replace("/default/", f"/{namespace}/"), waiting(namespace))
        return api

    monkeypatch.setattr(explain_command, "connect", connected)
    told = CliRunner().invoke(command_line(), ["explain", "-n", namespace, f"{namespace}/train"])
    assert (told.exit_code, told.stdout.startswith(f"{namespace}/train waits")) == (0, True), told.stderr


def test_two_namespaces_are_refused() -> None:
    told = CliRunner().invoke(command_line(), ["explain", "-n", "one", "two/train"])
    assert told.exit_code == 2
    assert "two/train is in the namespace two, and --namespace says one: leave one out" in " ".join(told.stderr.split())
