"""One user's jobs that fail the same way."""

from __future__ import annotations

import pytest

from coda.correlation import Alike, FailedJob, Outcome, alike_among, is_stopped_by
from coda.correlation.failed_jobs import ONE_ACCIDENT_S, WINDOW_S
from coda.diagnosis import Diagnosis, End, RankLog, Reason, Retry, classify

NOW_S = 1e6
CRASH = Diagnosis(reason=Reason.CORE_DUMP, retry=Retry.ONCE)
PORTS = Diagnosis(reason=Reason.MPI, retry=Retry.YES)


def failed(number: int, outcome: Outcome = Outcome.STOPPED, *, ago_s: float = 60.0, signature: str = "s") -> FailedJob:
    return FailedJob(uid=f"u{number}", name=f"ns/j{number}", signature=signature, time_s=NOW_S - ago_s, outcome=outcome)


def alike(*jobs: FailedJob) -> Alike:
    return alike_among(jobs, "s", "mine", NOW_S)


def test_other_jobs_are_named_newest_first() -> None:
    jobs = (failed(1, ago_s=9), failed(2, ago_s=3, outcome=Outcome.TRIED), failed(3, signature="other"))
    assert alike(*jobs) == Alike(names=("ns/j2", "ns/j1"), stops_s=(NOW_S - 9,))


def test_a_job_is_not_like_itself_and_nothing_is_like_no_signature() -> None:
    assert alike_among([failed(1)], "s", "u1", NOW_S) == Alike()
    assert alike_among([failed(1, signature="")], "", "mine", NOW_S) == Alike()


@pytest.mark.parametrize(
    ("jobs", "stopped"),
    [
        pytest.param([failed(1), failed(2)], False, id="two stops are too few"),
        pytest.param([failed(1), failed(2), failed(3)], True, id="three are enough"),
        pytest.param([failed(1), failed(2), failed(3, Outcome.TRIED)], False, id="one still goes on"),
        pytest.param(
            [failed(1), failed(2), failed(3, Outcome.CUT_SHORT)], False, id="what the rule stopped feeds it not"
        ),
        pytest.param([failed(1), failed(2), failed(3, ago_s=WINDOW_S)], False, id="a day ends it"),
        pytest.param(
            [failed(n, ago_s=60) for n in (1, 2, 3)] + [failed(4, Outcome.RECOVERED, ago_s=30)],
            False,
            id="trying again helped since",
        ),
        pytest.param(
            [failed(n, ago_s=60) for n in (1, 2, 3)] + [failed(4, Outcome.RECOVERED, ago_s=90)],
            True,
            id="trying again helped before",
        ),
    ],
)
def test_three_stops_within_a_day_stop_the_next_at_once(jobs: list[FailedJob], stopped: bool) -> None:
    assert is_stopped_by(alike(*jobs), CRASH) is stopped


def test_the_rule_ends_by_itself_however_often_the_user_tries() -> None:
    """A user submits the same failing job every hour. What the rule stops does not count: it ends."""
    jobs: list[FailedJob] = []
    cut = []
    for hour in range(60):
        now_s = hour * 3600.0
        is_cut = is_stopped_by(alike_among(jobs, "s", "mine", now_s), CRASH)
        outcome = Outcome.CUT_SHORT if is_cut else Outcome.STOPPED
        jobs.append(FailedJob(uid=f"u{hour}", name=f"ns/{hour}", signature="s", time_s=now_s, outcome=outcome))
        cut.append(is_cut)
    assert cut == [False] * 3 + [True] * 21 + [False] * 3 + [True] * 21 + [False] * 3 + [True] * 9


def test_an_outage_that_stops_many_jobs_together_is_one_accident() -> None:
    together = [failed(n, ago_s=60.0 + n) for n in range(20)]
    apart = [failed(n, ago_s=60.0 + n * ONE_ACCIDENT_S) for n in range(3)]
    assert not is_stopped_by(alike(*together), PORTS)
    assert is_stopped_by(alike(*apart), PORTS)
    assert is_stopped_by(alike(*together), CRASH)  # a sweep with one mistake


@pytest.mark.parametrize(
    "line",
    [
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation",
        "OSError: [Errno 116] Stale file handle: '/data/train/00017.tar'",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.",
        "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://data.example/x",
    ],
)
def test_an_outage_of_storage_is_one_accident_whatever_table_6_calls_it(line: str) -> None:
    log = f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n{line}\n'
    found = classify([RankLog(log=log.encode(), rank=0)], [End(exit_code=1, rank=0)])
    assert (found.reason, found.retry) == (Reason.INPUTS, Retry.YES)
    together = [failed(n, ago_s=72_000.0 + n) for n in range(3)]
    apart = [failed(n, ago_s=60.0 + n * ONE_ACCIDENT_S) for n in range(3)]
    assert not is_stopped_by(alike(*together), found)
    assert is_stopped_by(alike(*apart), found)


@pytest.mark.parametrize(("reason", "retry"), [(Reason.ECC, Retry.OTHER_NODE), (Reason.PREEMPTED, Retry.YES)])
def test_what_is_not_the_jobs_fault_is_never_stopped(reason: Reason, retry: Retry) -> None:
    jobs = [failed(n, ago_s=60.0 + n * ONE_ACCIDENT_S) for n in range(9)]
    assert not is_stopped_by(alike(*jobs), Diagnosis(reason=reason, retry=retry))
