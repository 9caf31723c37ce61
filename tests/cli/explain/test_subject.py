"""Names as `coda queue`, kubectl and people write them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from coda.errors import InvalidInput
from coda_cli.__main__ import command_line
from coda_cli.explain.explain_command import explained
from coda_cli.explain.queue_command import read_queue
from coda_cli.explain.subject import Subject, subject_of
from coda_cli.permitted import PermittedLists
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


@pytest.mark.parametrize("text", ["deployment/a", "workflow.argoproj.io/a", "team/"])
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


def test_two_namespaces_are_refused() -> None:
    told = CliRunner().invoke(command_line(), ["explain", "-n", "one", "two/train"])
    assert told.exit_code == 2
    assert "two/train is in the namespace two, and --namespace says one: leave one out" in " ".join(told.stderr.split())
