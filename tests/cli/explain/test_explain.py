"""What `coda queue` and `coda explain` say of objects as the API server has them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from coda.errors import InvalidInput
from coda.lifecycle.state import StopAnswer
from coda.model import WaitCode
from coda_cli.explain.advice import ADVICE, advice_for
from coda_cli.explain.explain_command import HOW, explained, sentences_of
from coda_cli.explain.leaders import LEASES
from coda_cli.explain.queue_command import read_queue, waited
from coda_cli.explain.waiting import PLACED, Waiting, queue_of
from coda_cli.permitted import PermittedLists
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER, GATE
from coda_kube.objects.quantities import micro_time_from_seconds, time_from_seconds
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, PODS, job_json, placement, pod_json

ROOT = Path(__file__).parents[3]
EVENTS = "/api/v1/namespaces/default/events"
PENDING = {"code": "InsufficientGPUs", "message": "needs 8 GPUs", "generation": 1, "holders": ["default/other"]}


def training_job(name: str, **status: Any) -> Json:
    job = job_json(name, **status)
    job["metadata"]["namespace"] = "default"
    return job


def gated(name: str, owner: str = "", kind: str = "Job", created: str = "2026-11-23T00:00:00Z") -> Json:
    owners = [{"kind": kind, "name": owner, "uid": "u", "controller": True}] * bool(owner)
    metadata = {"creationTimestamp": created, "ownerReferences": owners}
    return pod_json(name, cpu="2", metadata=metadata, spec={"schedulingGates": [{"name": GATE}], "priority": 5})


def event(kind: str, name: str, reason: str, message: str, at: str = "2026-11-23T00:00:05.000000Z") -> Json:
    return {
        "metadata": {"namespace": "default", "name": f"{name}.{at}"},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "eventTime": at,
    }


def test_every_reason_has_advice() -> None:
    assert set(ADVICE) == set(WaitCode)
    assert advice_for("InsufficientGPUs")
    assert advice_for("FromTheFuture") == ""


def test_every_answer_to_a_stop_has_its_sentence() -> None:
    assert set(HOW) == {answer.value for answer in StopAnswer}


def test_pods_of_one_owner_are_one_line_and_priority_goes_first() -> None:
    pods = [gated("a-1", "a"), gated("a-2", "a", created="2026-11-22T00:00:00Z"), gated("bare")]
    lines = queue_of([training_job("train", pending=PENDING)], [*pods, pod_json("foreign")], [])
    assert [(line.name, line.wants, line.priority) for line in lines] == [
        ("default/job/a", "2 pods of 2 cores", 5),
        ("default/pod/bare", "1 pod of 2 cores", 5),
        ("default/train", "1 rank of 8 GPUs, 4 cores and 8 GiB of memory", 0),
    ]
    assert lines[2].holders == ("default/other",)


def test_a_line_names_its_user_and_nothing_that_a_terminal_obeys() -> None:
    stamped = training_job("train", pending=PENDING)
    stamped["metadata"]["annotations"] = {ANNOTATION_USER: "ann\x1b[2J"}
    lines = queue_of([stamped], [gated("bare")], [])
    assert [(line.name, line.user) for line in lines] == [
        ("default/pod/bare", "default"),
        ("default/train", "ann\ufffd[2J"),
    ]
    assert lines[1].as_json()["user"] == "ann\ufffd[2J"


def test_what_others_wrote_holds_nothing_that_a_terminal_obeys() -> None:
    """Anybody may write an Event, and name an owner as they like."""
    evil = "\x1b]0;owned\x07"
    told = PENDING | {"message": f"needs{evil}\n8 GPUs", "holders": [f"default/{evil}"]}
    said = event("Job", f"a{evil}", "NeverFits", f"waits: too{evil} large\u202e")
    lines = queue_of([training_job("train", pending=told)], [gated("a-1", f"a{evil}")], [said])
    assert [(line.name, line.message, *line.holders) for line in lines] == [
        ("default/job/a\ufffd]0;owned\ufffd", "too\ufffd]0;owned\ufffd large\ufffd"),
        ("default/train", "needs\ufffd]0;owned\ufffd 8 GPUs", "default/\ufffd]0;owned\ufffd"),
    ]


def test_a_line_has_the_last_reason_that_the_planner_gave_for_any_of_its_pods() -> None:
    events = [
        event("Pod", "a-1", "NeverFits", "waits: too large (pods of its owner that wait: 2)"),
        event("Job", "a", "InsufficientCPU", "too full (pods that wait: 2)", at="2026-11-23T00:00:09.000000Z"),
        event("Pod", "a-1", "Reclaimed", "gives its cores back", at="2026-11-23T00:01:00.000000Z"),
        event("Pod", "other", "NeverFits", "waits: of another", at="2026-11-23T00:02:00.000000Z"),
    ]
    (line,) = queue_of([], [gated("a-1", "a"), gated("a-2", "a")], events)
    assert (line.code, line.message) == ("InsufficientCPU", "too full")


def test_events_are_read_once_however_many_lines_there_are() -> None:
    class CountedReads(dict[str, Any]):
        reads = 0

        def get(self, key: str, default: Any = None) -> Any:
            CountedReads.reads += key == "reason"
            return super().get(key, default)

    names = [f"a{number}" for number in range(50)]
    events = [CountedReads(event("Job", name, "NeverFits", f"{name} is too large")) for name in names]
    lines = queue_of([], [gated(f"{name}-1", name) for name in names], events)
    assert [line.message for line in lines] == [f"{line.name.rpartition('/')[2]} is too large" for line in lines]
    assert CountedReads.reads == len(events)


def test_an_event_that_says_nothing_of_anything_hides_no_reason() -> None:
    """As the API server stores an Event of which a user gave the namespace and the reporter only."""
    empty: Json = {"metadata": {"namespace": "default", "name": "x"}, "involvedObject": {}, "eventTime": None}
    nameless = empty | {"reason": "NeverFits", "involvedObject": {"kind": "Job", "namespace": "default"}}
    said = event("Job", "a", "InsufficientCPU", "too full")
    (line,) = queue_of([], [gated("a-1", "a")], [empty, nameless, said])
    assert (line.code, line.message) == ("InsufficientCPU", "too full")
    del said["message"]
    (line,) = queue_of([], [gated("a-1", "a")], [empty, nameless, said])
    assert (line.code, line.message) == ("InsufficientCPU", "")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Running"}, None),
        ({"phase": "Restarting", "message": "attempt 12 ended"}, "Restarting"),
        ({"phase": "Succeeded"}, None),
        ({"pending": PENDING}, "InsufficientGPUs"),
        ({"placement": placement("n1", state="Committed")}, PLACED),
        ({}, ""),
    ],
)
def test_which_training_jobs_wait_and_why(status: dict[str, Any], expected: str | None) -> None:
    lines = queue_of([training_job("train", **status)], [], [])
    assert [line.code for line in lines] == ([] if expected is None else [expected])


def test_a_job_that_the_operator_has_not_seen_waits_too() -> None:
    new = {"metadata": {"name": "new", "namespace": "default"}, "spec": {"replicas": 1}}
    (line,) = queue_of([new], [], [])
    assert (line.message, waited(line, 1e9)) == ("not accepted yet", "")


def test_an_explanation_says_place_want_reason_holders_and_advice() -> None:
    line = Waiting(
        name="team/train",
        wants="2 ranks of 8 GPUs",
        user="ann",
        since_s=1000.0,
        code="BackingOff",
        message="its last attempt failed",
        holders=("team/other", "lab/*"),
        not_before_s=1_800_000_000.0,
    )
    assert [*sentences_of(line, 2, 9, 1090.0)] == [
        "team/train waits for 1m 30s, as number 2 of 9 in its namespace.",
        "It counts for the user ann.",
        "It wants 2 ranks of 8 GPUs.",
        "Why: BackingOff: its last attempt failed.",
        "Held by: team/other, lab/*.",
        "It is not tried before 2027-01-15 08:00 UTC.",
        "You can: see with coda explain why its last attempt failed; it is tried again by itself.",
    ]


@pytest.fixture
async def api() -> FakeApi:
    api = FakeApi()
    api.set(JOBS, job_json("train", pending=PENDING))
    api.set(JOBS, job_json("runs", phase="Running", placement=placement("n1"), message="all containers started"))
    api.set(PODS, gated("a-1", "a"))
    api.set(EVENTS, event("Pod", "a-1", "NeverFits", "waits: too large"))
    return api


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("train", "Why: InsufficientGPUs: needs 8 GPUs."),
        ("tj/train", "Held by: default/other."),
        ("tj/train", "It counts for the namespace default: no user is known."),
        ("job/a", "Why: NeverFits: too large."),
        ("pod/a-1", "It wants 1 pod of 2 cores."),
        ("runs", "default/runs does not wait: Running on n1: all containers started."),
    ],
)
async def test_anything_can_be_asked_about(api: FakeApi, name: str, says: str) -> None:
    assert says in (await explained(api, "default", name)).sentences


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nobody", "there is no TrainingJob nobody in namespace default"),
        ("pod/other", "there is no Pod other in namespace default"),
        ("elsewhere/job/other", "there is no Job other in namespace elsewhere"),
        ("default/workflow/other", "nothing of default/workflow/other waits for the planner"),
        ("node/n1", "node/n1: write NAME of a TrainingJob"),
    ],
)
async def test_what_cannot_be_explained_is_said_in_one_sentence(api: FakeApi, name: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        await explained(api, "default", name)


async def test_the_queue_of_a_namespace_has_nothing_of_others(api: FakeApi) -> None:
    assert [line.name for line in await read_queue(PermittedLists(api, "default"))] == [
        "default/job/a",
        "default/train",
    ]
    assert await read_queue(PermittedLists(api, "elsewhere")) == []


def test_the_page_of_reasons_has_every_code_with_the_advice_that_is_given() -> None:
    page = (ROOT / "docs" / "why-jobs-wait.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    reasons = [row for row in rows if len(row) == 3 and row[0] != f"`{PLACED}`"]  # the table of causes has two columns
    assert {code.strip("`"): advice for code, _, advice in reasons} == {
        code.value: advice for code, advice in ADVICE.items()
    }


STOP = {"cause": "Migrate", "by": "default/large", "time": "2026-11-23T00:00:00Z", "noticeSeconds": 60}


async def test_a_placed_job_names_those_it_waits_for_and_until_when() -> None:
    api = FakeApi()
    told = training_job("guest", phase="Running", stopDeadline="2026-11-23T12:05:00Z", message="is to save and end")
    told["status"]["placement"] = placement("n1") | {"stop": STOP}
    api.set(JOBS, told)
    api.set(JOBS, training_job("large", placement=placement("n1")))
    lease = {"holderIdentity": "a", "renewTime": time_from_seconds(time.time())}
    for part in ("coda-planner", "coda-operator"):
        api.set(LEASES, {"metadata": {"name": part}, "spec": lease})
    waits = await explained(api, "default", "large")
    assert (
        "has its place on n1, once it is left by default/guest (told to save and end by 2026-11-23"
        in (waits.sentences[-1])
    )
    runs = await explained(api, "default", "guest")
    assert runs.sentences[0].startswith("default/guest does not wait: Running on n1: is to save and end, at 2026-11-23")


async def test_a_job_that_was_stopped_says_how_it_went_and_what_it_lost() -> None:
    api = FakeApi()
    last = {"attempt": 1, "cause": "Migrate", "by": "default/large", "answer": "Late", "lostSeconds": 3720}
    api.set(JOBS, training_job("guest", phase="Running", lastStop=last))
    said = await explained(api, "default", "guest")
    assert said.sentences[1] == (
        "Attempt 1 was stopped so that default/large got its room. It did not answer within its notice; "
        "it lost 1h 2m of work."
    )


def failed_job(name: str, **failure: Any) -> Json:
    told = {"attempt": 2, "reason": "Core dump", "rank": 1, "node": "n1", "evidence": "Segmentation fault"}
    told |= {"decision": "it is not tried again: it failed so twice", "advice": "look at its version"}
    told |= {"signature": "Core dump: segmentation fault", "time": time_from_seconds(time.time() - 60)}
    return training_job(name, phase="Failed", reason="RankFailed", message="rank 1 failed", failure=told | failure)


async def test_a_failed_job_says_why_what_follows_and_which_others_failed_alike() -> None:
    api = FakeApi()
    for name in ("mine", "b", "a"):
        api.set(JOBS, failed_job(name))
    api.set(JOBS, failed_job("other", signature="Import error: x"))
    told = await explained(api, "default", "mine")
    assert told.sentences[1:] == (
        "Attempt 2 failed with Core dump (rank 1 on n1): Segmentation fault.",
        "What followed: it is not tried again: it failed so twice.",
        "You can: look at its version.",
        "2 other jobs of its user failed alike within a day: default/a and default/b.",
        "It has ended, and no edit runs it again: delete it and submit it again.",
    )
    assert told.as_json()["failure"]["reason"] == "Core dump"


async def test_a_job_that_waits_for_its_next_attempt_says_why_the_last_one_failed() -> None:
    """Its pods are gone, so nobody can look into their logs."""
    api = FakeApi()
    pending = PENDING | {"code": "BackingOff", "message": "its last attempt failed"}
    waits = failed_job("mine", decision="it is tried again while spec.retries allows")
    waits["status"] |= {"phase": "Queued", "pending": pending}
    api.set(JOBS, waits)
    told = await explained(api, "default", "mine")
    assert told.sentences[-4:] == (
        "You can: see with coda explain why its last attempt failed; it is tried again by itself.",
        "Attempt 2 failed with Core dump (rank 1 on n1): Segmentation fault.",
        "What followed: it is tried again while spec.retries allows.",
        "You can: look at its version.",
    )
    assert told.as_json()["failure"]["reason"] == "Core dump"


@pytest.mark.parametrize(
    ("status", "last"),
    [
        pytest.param(
            {"reason": "DeadlineExceeded", "message": "ran for 9 s: delete it and submit it again"},
            "default/j does not wait: Failed: ran for 9 s: delete it and submit it again.",
            id="its message says it",
        ),
        pytest.param(
            {"reason": "StartDeadlineExceeded", "message": "rank 0 did not start"},
            "It has ended, and no edit runs it again: delete it and submit it again.",
            id="nobody has said it",
        ),
        pytest.param(
            {"reason": "TemplateRefused", "message": "spec.foo: unknown field"},
            "You can: mend its template in place; the edit is taken.",
            id="its template was refused",
        ),
    ],
)
async def test_a_failed_job_says_what_runs_it_again(status: Json, last: str) -> None:
    api = FakeApi()
    api.set(JOBS, training_job("j", phase="Failed", **status))
    assert (await explained(api, "default", "j")).sentences[-1] == last


async def test_the_log_of_a_failed_job_holds_nothing_that_a_terminal_obeys() -> None:
    api = FakeApi()
    api.set(JOBS, failed_job("mine", evidence="out of\tmemory\x9b2J"))
    told = await explained(api, "default", "mine")
    assert told.sentences[1] == "Attempt 2 failed with Core dump (rank 1 on n1): out of memory\ufffd2J."


def sharing(name: str, node: str, *gpus: int, **status: Any) -> Json:
    """One that runs there, on seats or (without them) on GPUs of its own."""
    plan = placement(node, plan=f"of-{name}") | ({"gpus": list(gpus)} if gpus else {})
    return training_job(name, phase="Running", placement=plan, **status)


async def test_says_who_shares_gpus_with_whom_and_what_it_costs() -> None:
    api = FakeApi()
    told = {"class": "Opportunistic", "expectedSpeed": 0.5, "beside": ["default/owner"]}
    jobs = [
        sharing("owner", "n1"),
        sharing("rides", "n1", 0, sharing=told),
        sharing("beside", "n1", 0),
        sharing("elsewhere", "n1", 1),
        sharing("whole", "n1"),
        sharing("far", "n2"),
    ]
    for job in jobs:
        api.set(JOBS, job)
    assert (await explained(api, "default", "rides")).sentences[1:] == (
        "It is opportunistic: it has 1 seat, on GPU 0 of n1. No quota is charged for it.",
        "It shares these with default/beside.",
        "When it started, these GPUs belonged to default/owner. Owners go first, and guests are slowed down.",
        "On these nodes default/whole have GPUs of their own, perhaps the same ones: they go first.",
        "When it started, it was expected to run at 50% of its speed alone.",
        "It is the first to stop when another job needs what it holds.",
    )
    assert "No other opportunistic job is there." in (await explained(api, "default", "elsewhere")).sentences
    (said,) = (await explained(api, "default", "whole")).sentences[1:]
    assert said.startswith(
        "Opportunistic jobs have seats on its nodes: default/beside, default/elsewhere and default/rides."
    )
    assert len((await explained(api, "default", "far")).sentences) == 1


@pytest.mark.parametrize(
    ("pod", "by", "ago_s", "is_said"),
    [
        pytest.param(
            "rides-1-1", "coda-agent", 1700, True, id="it stands still: its agent repeats it each half an hour"
        ),
        pytest.param("rides-1-1", "coda-agent", 2200, False, id="it did once"),
        pytest.param("rides-0-1", "coda-agent", 60, False, id="an earlier attempt did"),
        pytest.param("rides-1-1", "somebody", 60, False, id="somebody else says so"),
    ],
)
async def test_says_of_a_guest_that_it_stands_still(pod: str, by: str, ago_s: float, is_said: bool) -> None:
    api, now_s = FakeApi(), time.time()
    plan = placement("n1", "n1", plan="of-rides") | {"gpus": [0, 1]}
    api.set(JOBS, training_job("rides", phase="Running", placement=plan, sharing={"class": "Opportunistic"}))
    for number, (age_s, message) in enumerate([(ago_s + 9000, "stood"), (ago_s, "stands still: no room")]):
        said = event("Pod", pod, "CrowdedOut", message)
        said["metadata"]["name"] = f"e{number}"
        api.set(EVENTS, said | {"reportingComponent": by, "eventTime": micro_time_from_seconds(now_s - age_s)})
    told = (await explained(api, "default", "rides")).sentences
    expected = "Rank 1 stands still: no room (said by its node's agent at "
    assert [one.startswith(expected) for one in told if "agent" in one] == [True] * is_said
