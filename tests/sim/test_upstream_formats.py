"""Philly's, Helios' and openb's logs as published upstream: what each says about a job, and what has to be left out."""

import json
from pathlib import Path

import pytest

from coda.errors import InvalidInput
from coda_sim.json_list import MAX_VALUE_CHARACTERS, json_values
from coda_sim.reading import read_trace
from coda_sim.trace import Amendment, BadRow, BadRows, Format, Kind, OnError, Row, Status, Trace

HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
HELIOS_JOB = "1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0"
OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
OPENB_POD = "openb-pod-0033,3152,5600,1,1000,,BE,Failed,9965463,9965645,9965463.0"

FIRST, SECOND = (
    {
        "start_time": "2017-10-07 01:12:09",
        "end_time": "2017-10-07 01:13:23",
        "detail": [{"ip": "m47", "gpus": [f"gpu{n}" for n in range(8)]}],
    },
    {
        "start_time": "2017-10-07 01:13:30",
        "end_time": "2017-10-09 06:53:12",
        "detail": [{"ip": "m412", "gpus": [f"gpu{n}" for n in range(8)]}],
    },
)
PHILLY_JOB: dict[str, object] = {
    "status": "Pass",
    "vc": "ee9e8c",
    "jobid": "application_1506638472019_14199",
    "attempts": [FIRST, SECOND],
    "submitted_time": "2017-10-07 01:11:39",
    "user": "ce2f4c",
}
FIRST_RUN_S, SECOND_RUN_S = 74.0, 193_182.0


def read(folder: Path, text: str, on_error: OnError = OnError.SKIP) -> Trace:
    path = folder / "log"
    path.write_text(text, encoding="utf-8")
    return read_trace(path, on_error=on_error)


def philly(folder: Path, *jobs: object) -> Trace:
    good = PHILLY_JOB | {"jobid": "good"}
    return read(folder, json.dumps([good, *jobs], indent=1))


def csv_line(line: str, header: str, **fields: str) -> str:
    values = dict(zip(header.split(","), line.split(","), strict=True)) | fields
    return ",".join(values.values())


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
            status=Status.PASSED,
            kind=Kind.GPU,
        ),
    )
    assert (trace.format, trace.began, trace.bad, trace.amended) == (Format.PHILLY, "2017-10-07", (), ())


def test_a_helios_job_keeps_its_cores_and_nodes_and_counts_from_midnight(tmp_path: Path) -> None:
    early = csv_line(HELIOS_JOB, HELIOS, job_id="7", gpu_num="0", state="CANCELLED", submit_time="2020-06-08 23:00:00")
    trace = read(tmp_path, f"{HELIOS}\n{HELIOS_JOB}\n{early}\n")
    assert [(row.job_id, row.submit_s, row.kind, row.status) for row in trace.rows] == [
        ("7", 82_800.0, Kind.CPU, Status.KILLED),
        ("1425512", 153_687.0, Kind.GPU, Status.FAILED),
    ]
    second = trace.rows[1]
    assert (second.gpus, second.cpus, second.nodes_requested, second.duration_s) == (4, 16.0, 1, 249.0)
    assert (second.user, second.virtual_cluster, second.line) == ("uVMrF", "vchbv", 2)
    assert (trace.format, trace.began, trace.was_sorted) == (Format.HELIOS, "2020-06-08", False)


def test_an_openb_pod_runs_from_its_scheduling_to_its_deletion(tmp_path: Path) -> None:
    trace = read(tmp_path, f"{OPENB}\n{OPENB_POD}\n")
    (row,) = trace.rows
    assert (row.job_id, row.virtual_cluster, row.user) == ("openb-pod-0033", "BE", "")
    assert (row.submit_s, row.duration_s, row.gpus, row.nodes_requested) == (9_965_463.0, 182.0, 1, 1)
    assert (row.cpus, row.memory_gib, row.status, row.kind) == (3.152, 5.47, Status.FAILED, Kind.GPU)
    assert (trace.format, trace.began, trace.amended) == (Format.OPENB, "", ())


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


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        (
            csv_line(HELIOS_JOB, HELIOS, state="RUNNING"),
            BadRow(line=2, sentence="state is 'RUNNING': the log ends before the job does", is_benign=True),
        ),
        (
            csv_line(HELIOS_JOB, HELIOS, state="done"),
            BadRow(
                line=2,
                sentence="state is 'done', must be one of COMPLETED, CANCELLED, FAILED, NODE_FAIL, TIMEOUT",
            ),
        ),
        (
            csv_line(HELIOS_JOB, HELIOS, duration="-3"),
            BadRow(line=2, sentence="duration is '-3', must be a number from 0 to 3.2e+09"),
        ),
        (
            csv_line(HELIOS_JOB, HELIOS, submit_time="yesterday"),
            BadRow(
                line=2,
                sentence="submit_time is 'yesterday', must be a time from 1970 on, written as 2020-06-09 18:41:01",
            ),
        ),
        (csv_line(HELIOS_JOB, HELIOS, gpu_num=""), BadRow(line=2, sentence="gpu_num is empty")),
        (
            csv_line(HELIOS_JOB, HELIOS, node_num="0"),
            BadRow(line=2, sentence="node_num is '0', must be a number from 1 to 1e+06"),
        ),
    ],
)
def test_a_bad_helios_row_is_named_by_line_and_column(tmp_path: Path, line: str, bad: BadRow) -> None:
    trace = read(tmp_path, f"{HELIOS}\n{line}\n{csv_line(HELIOS_JOB, HELIOS, job_id='8')}\n")
    assert trace.bad == (bad,)
    assert [row.job_id for row in trace.rows] == ["8"]


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        (
            csv_line(OPENB_POD, OPENB, pod_phase="Pending", scheduled_time=""),
            BadRow(
                line=2,
                sentence="pod_phase is 'Pending': the pod was never scheduled and has no run time",
                is_benign=True,
            ),
        ),
        (
            csv_line(OPENB_POD, OPENB, scheduled_time="nan"),
            BadRow(line=2, sentence="scheduled_time is 'nan', must be a number from 0 to 3.2e+09"),
        ),
        (
            csv_line(OPENB_POD, OPENB, deletion_time="5"),
            BadRow(line=2, sentence="deletion_time 5 is before scheduled_time 9.96546e+06"),
        ),
        (
            csv_line(OPENB_POD, OPENB, pod_phase="Lost"),
            BadRow(line=2, sentence="pod_phase is 'Lost', must be one of Pending, Succeeded, Failed, Running"),
        ),
        (
            csv_line(OPENB_POD, OPENB, gpu_milli="1500"),
            BadRow(line=2, sentence="gpu_milli is '1500', must be a number from 0 to 1000"),
        ),
    ],
)
def test_a_bad_openb_pod_is_named_by_line_and_column(tmp_path: Path, line: str, bad: BadRow) -> None:
    trace = read(tmp_path, f"{OPENB}\n{line}\n{csv_line(OPENB_POD, OPENB, name='other')}\n")
    assert trace.bad == (bad,)
    assert [row.job_id for row in trace.rows] == ["other"]


def test_a_share_of_a_gpu_and_a_run_of_no_time_are_rounded_up_and_that_is_said(tmp_path: Path) -> None:
    trace = read(tmp_path, f"{OPENB}\n{csv_line(OPENB_POD, OPENB, gpu_milli='460', deletion_time='9965463')}\n")
    assert (trace.rows[0].gpus, trace.rows[0].duration_s) == (1, 1.0)
    shared, short = (
        "gpu_milli is 460: a share of one GPU, counted as a whole one",
        "a run time of 0 s is counted as 1 s",
    )
    assert trace.amended == (Amendment(line=2, sentence=f"{shared}; {short}"),)
    trace = read(tmp_path, f"{HELIOS}\n{csv_line(HELIOS_JOB, HELIOS, duration='0')}\n")
    assert trace.amended == (Amendment(line=2, sentence=short),)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "log:1: column 2: the file is cut short: the list is not closed"),
        ("[]", "no usable row (0 bad ones)"),
        ('{"jobs": []}', "log:1: column 1: a list of jobs is expected, which starts with '['"),
        ("[\n {}\n", "log:3: column 1: the file is cut short: the list is not closed"),
        ("[\n {} {}]", "log:2: column 5: '{' where ',' or ']' is expected"),
        ("[{}] x", "log:1: column 6: more text after the end of the list"),
        (
            '[{},\n{"jobid": "a",\n "vc" 7}]',
            "log:3: column 7: Expecting ':' delimiter (in the value that begins in line 2)",
        ),
        ('[{}, {"jobid": "a', "log:1: column 16: Unterminated string starting at (in the value that begins in line 1)"),
        ("[" * 300_000, "nested too deeply"),
        ("[" + "9" * 100_000 + "]", "a number with too many digits"),
        (HELIOS.replace(",state", ""), "log:1: the header lacks state"),
        (OPENB.replace(",qos", ""), "log:1: the header lacks qos"),
        (f"{HELIOS},user", "log:1: the header has user twice"),
        ("sn,cpu_milli,memory_mib,gpu,model", "log:1: the header lacks name, num_gpu, gpu_milli, qos, pod_phase"),
    ],
)
def test_a_file_that_cannot_be_read_on_is_one_sentence_with_line_and_column(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, text)
    assert sentence in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


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


def test_text_in_utf_16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(f"{HELIOS}\n{HELIOS_JOB}\n".encode("utf-16"))
    with pytest.raises(InvalidInput, match="the text is UTF-16: save it as UTF-8"):
        read_trace(path, on_error=OnError.SKIP)
