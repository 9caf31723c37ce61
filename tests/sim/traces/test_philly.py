"""Philly's job log: what it says about a job, what has to be left out, and where the JSON itself is broken."""

import json
from pathlib import Path

import pytest

from coda.errors import InvalidInput
from coda_sim.traces import Format, JobKind, OnError, RecordedStatus, Row, Trace, read_trace
from coda_sim.traces.json_list import MAX_VALUE_CHARACTERS, json_values
from coda_sim.traces.trace import Amendment, BadRows
from tests.sim.results.logs import FIRST, FIRST_RUN_S, PHILLY_JOB, SECOND, SECOND_RUN_S, read


def philly(folder: Path, *jobs: object) -> Trace:
    good = PHILLY_JOB | {"jobid": "good"}
    return read(folder, json.dumps([good, *jobs], indent=1))


def test_a_philly_job_is_the_sum_of_its_attempts_on_the_gpus_of_the_first(tmp_path: Path) -> None:
    trace = read(tmp_path, json.dumps([PHILLY_JOB]))
    assert trace.rows == (
        Row(
            line=1,
            job_id="application_1506638472019_14199",
            user="ce2f4c",
            virtual_cluster="ee9e8c",
            submit_s=4299.0,
            duration_s=FIRST_RUN_S + SECOND_RUN_S,
            gpus=8,
            cpus=None,
            memory_gib=None,
            nodes_requested=None,
            status=RecordedStatus.PASSED,
            kind=JobKind.GPU,
            wait_s=30.0,
        ),
    )
    assert (trace.format, trace.began, trace.bad, trace.amended) == (Format.PHILLY, "2017-10-07", (), ())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"attempts": []}, "attempts is empty: the job never ran"),
        (
            {"attempts": [FIRST, SECOND | {"end_time": None}]},
            "attempts[1].end_time is empty: the log ends before the job does",
        ),
        (
            {"attempts": [{"start_time": "None", "end_time": "2017-10-07 01:12:09", "detail": [{"gpus": ["gpu0"]}]}]},
            "no attempt has both a start_time and an end_time: the run time is unknown",
        ),
        (
            {"attempts": [FIRST | {"detail": []}]},
            "attempts[0].detail names no GPU: how many the job asked for is unknown",
        ),
    ],
)
def test_philly_jobs_without_a_run_are_left_out_by_name_but_are_no_fault(
    tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    trace = philly(tmp_path, PHILLY_JOB | change)
    assert [(row.sentence, row.is_benign) for row in trace.bad] == [(sentence, True)]
    path = tmp_path / "log"
    assert read_trace(path, on_error=OnError.REFUSE).rows == trace.rows


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (7, "the job is '7', must be a JSON object"),
        ({}, "jobid is 'None', must be a text"),
        (PHILLY_JOB | {"status": "Done"}, "status is 'Done', must be one of Pass, Killed, Failed"),
        (PHILLY_JOB | {"vc": None}, "vc is 'None', must be a text"),
        (PHILLY_JOB | {"user": "\ud800"}, "user is '\\ud800', must be printable UTF-8 text"),
        (PHILLY_JOB | {"jobid": ""}, "jobid '' is not 1 to 253 printable characters"),
        (PHILLY_JOB | {"jobid": "good"}, "job_id 'good' was used before, in line 2"),
        (PHILLY_JOB | {"attempts": {}}, "attempts is '{}', must be a list"),
        (PHILLY_JOB | {"attempts": [None]}, "attempts[0] is 'None', must be a JSON object"),
        (
            PHILLY_JOB | {"submitted_time": "2017-02-30 00:00:00"},
            "submitted_time is '2017-02-30 00:00:00', must be a time from 1970 on, written as 2020-06-09 18:41:01",
        ),
        (
            PHILLY_JOB | {"submitted_time": "1066-10-14 09:00:00"},
            "submitted_time is '1066-10-14 09:00:00', must be a time from 1970 on, written as 2020-06-09 18:41:01",
        ),
        (
            PHILLY_JOB | {"attempts": [FIRST | {"end_time": "NaN"}]},
            "attempts[0].end_time is 'NaN', must be a time from 1970 on, written as 2020-06-09 18:41:01",
        ),
        (
            PHILLY_JOB | {"attempts": [FIRST | {"end_time": "2017-10-07 01:12:08"}]},
            "attempts[0] ends before it starts",
        ),
        (
            PHILLY_JOB | {"attempts": [FIRST | {"detail": [{"ip": "m"}]}]},
            "attempts[0].detail[0].gpus is 'None', must be a list",
        ),
    ],
)
def test_a_bad_philly_job_is_named_and_spoils_no_other(tmp_path: Path, job: object, sentence: str) -> None:
    trace = philly(tmp_path, job, PHILLY_JOB | {"jobid": "last"})
    (bad,) = trace.bad
    assert (bad.sentence, bad.is_benign) == (sentence, False)
    assert [row.job_id for row in trace.rows] == ["good", "last"]
    assert (tmp_path / "log").read_text().splitlines()[bad.line - 1].strip() in ("{", "{},", "7,")
    with pytest.raises(BadRows):
        read_trace(tmp_path / "log", on_error=OnError.REFUSE)


def test_an_attempt_without_times_is_not_counted_and_that_is_said(tmp_path: Path) -> None:
    lost = FIRST | {"start_time": None}
    trace = read(tmp_path, json.dumps([PHILLY_JOB | {"attempts": [lost, SECOND]}]))
    assert trace.rows[0].duration_s == SECOND_RUN_S
    assert trace.amended == (Amendment(line=1, sentence="attempts[0] without start_time or end_time not counted"),)


def test_the_list_may_break_its_lines_anywhere_and_jobs_may_lie_across_the_window(tmp_path: Path) -> None:
    jobs = [PHILLY_JOB | {"jobid": f"job-{number}", "user": "u" * (number % 97)} for number in range(400)]
    in_one_line = read(tmp_path, json.dumps(jobs))
    spread_out = read(tmp_path, "\n\n" + json.dumps(jobs, indent=3).replace("},", "}\n,"))
    assert len(in_one_line.rows) == 400
    strip = [(row.job_id, row.user, row.duration_s) for row in in_one_line.rows]
    assert [(row.job_id, row.user, row.duration_s) for row in spread_out.rows] == strip
    assert [row.line for row in in_one_line.rows] == [1] * 400


class _Endless:
    """A text without end that counts what is read of it."""

    def __init__(self) -> None:
        self.characters = 0

    def read(self, size: int) -> str:
        self.characters += size
        return "a" * size


def test_a_value_without_end_is_given_up_at_the_limit() -> None:
    endless = _Endless()
    with pytest.raises(InvalidInput, match=f"Unterminated string .* or longer than {MAX_VALUE_CHARACTERS}"):
        list(json_values(Path("log"), endless, '["'))  # type: ignore[arg-type]
    assert endless.characters < 4 * MAX_VALUE_CHARACTERS


def test_a_job_in_another_encoding_spoils_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "log"
    jobs = [PHILLY_JOB | {"user": "Zoë"}, PHILLY_JOB | {"jobid": "second"}]
    path.write_bytes(json.dumps(jobs, ensure_ascii=False).encode("latin-1"))
    trace = read_trace(path, on_error=OnError.SKIP)
    assert [bad.sentence for bad in trace.bad] == ["user is 'Zo\ufffd', must be printable UTF-8 text"]
    assert [row.job_id for row in trace.rows] == ["second"]
