"""Helios' and openb's logs: what each says about a job, what has to be left out, and what is said about it."""

import json
from pathlib import Path

import pytest

from coda.errors import InvalidInput
from coda_sim.traces import Format, JobKind, OnError, RecordedStatus, read_trace
from coda_sim.traces.trace import Amendment, BadRow
from tests.sim.results.logs import HELIOS, HELIOS_JOB, OPENB, OPENB_POD, PHILLY_JOB, csv_line, read


def test_a_helios_job_keeps_its_cores_and_nodes_and_counts_from_midnight(tmp_path: Path) -> None:
    early = csv_line(HELIOS_JOB, HELIOS, job_id="7", gpu_num="0", state="CANCELLED", submit_time="2020-06-08 23:00:00")
    trace = read(tmp_path, f"{HELIOS}\n{HELIOS_JOB}\n{early}\n")
    assert [(row.job_id, row.submit_s, row.kind, row.status) for row in trace.rows] == [
        ("7", 82_800.0, JobKind.CPU, RecordedStatus.KILLED),
        ("1425512", 153_687.0, JobKind.GPU, RecordedStatus.FAILED),
    ]
    second = trace.rows[1]
    assert (second.gpus, second.cpus, second.nodes_requested, second.duration_s) == (4, 16.0, 1, 249.0)
    assert (second.user, second.virtual_cluster, second.line) == ("uVMrF", "vchbv", 2)
    assert (trace.format, trace.began, trace.was_sorted) == (Format.HELIOS, "2020-06-08", False)


@pytest.mark.parametrize(
    ("gpus", "spec", "said"),
    [("1", "V100M16|V100M32", ("gpu_spec is 'V100M16|V100M32': GPUs of any product are taken",)), ("0", "A10", ())],
)
def test_the_gpu_products_that_an_openb_pod_asks_for_are_dropped_and_said(
    tmp_path: Path, gpus: str, spec: str, said: tuple[str, ...]
) -> None:
    trace = read(tmp_path, f"{OPENB}\n{csv_line(OPENB_POD, OPENB, num_gpu=gpus, gpu_spec=spec)}\n")
    assert tuple(amended.sentence for amended in trace.amended) == said


def test_an_openb_pod_runs_from_its_scheduling_to_its_deletion(tmp_path: Path) -> None:
    trace = read(tmp_path, f"{OPENB}\n{OPENB_POD}\n")
    (row,) = trace.rows
    assert (row.job_id, row.virtual_cluster, row.user) == ("openb-pod-0033", "BE", "")
    assert (row.submit_s, row.duration_s, row.gpus, row.nodes_requested) == (9_965_463.0, 182.0, 1, 1)
    assert (row.cpus, row.memory_gib, row.status, row.kind) == (3.152, 5.47, RecordedStatus.FAILED, JobKind.GPU)
    assert (trace.format, trace.began, trace.amended) == (Format.OPENB, "", ())


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
                sentence="state is 'done', must be one of COMPLETED, CANCELLED, FAILED, NODE_FAIL, TIMEOUT, "
                "OUT_OF_MEMORY, BOOT_FAIL, PREEMPTED, DEADLINE",
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


def test_the_account_says_what_was_read_and_what_became_of_the_lines(tmp_path: Path) -> None:
    pending = csv_line(OPENB_POD, OPENB, name="waits", pod_phase="Pending", scheduled_time="")
    shared = csv_line(OPENB_POD, OPENB, name="shares", gpu_milli="460")
    trace = read(tmp_path, f"{OPENB}\n{OPENB_POD}\n{pending}\n{shared}\n")
    assert trace.account() == (
        f"{tmp_path / 'log'}: read as Alibaba's openb pod list: 2 rows; "
        "1 left out, as line 3: pod_phase is 'Pending': the pod was never scheduled and has no run time; "
        "1 changed, as line 4: gpu_milli is 460: a share of one GPU, counted as a whole one"
    )
    dated = read(tmp_path, json.dumps([PHILLY_JOB]))
    assert dated.account().endswith("read as Philly's cluster_job_log (JSON): 1 rows from 2017-10-07 on")


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("CANCELLED by 1234", RecordedStatus.KILLED),
        ("PREEMPTED", RecordedStatus.KILLED),
        ("OUT_OF_MEMORY", RecordedStatus.FAILED),
        ("NODE_FAIL", RecordedStatus.FAILED),
        ("BOOT_FAIL", RecordedStatus.FAILED),
        ("DEADLINE", RecordedStatus.TIMEOUT),
    ],
)
def test_every_end_that_slurm_writes_is_an_end(tmp_path: Path, state: str, status: RecordedStatus) -> None:
    (row,) = read(tmp_path, f"{HELIOS}\n{csv_line(HELIOS_JOB, HELIOS, state=state)}\n").rows
    assert row.status is status


def test_each_reason_is_counted_and_harmful_ones_come_first(tmp_path: Path) -> None:
    changes = [{"state": "RUNNING"}, {"state": "lost"}, {"duration": "-1"}, {"state": "RUNNING"}, {"state": "gone"}]
    bad = [csv_line(HELIOS_JOB, HELIOS, job_id=f"b{number}", **change) for number, change in enumerate(changes)]
    trace = read(tmp_path, "\n".join([HELIOS, *bad, HELIOS_JOB, ""]))
    assert [line.strip() for line in trace.account().splitlines()] == [
        f"{tmp_path / 'log'}: read as Helios' cluster_log.csv: 1 rows from 2020-06-09 on",
        "2 left out, as line 3: state is 'lost', must be one of COMPLETED, CANCELLED, FAILED, NODE_FAIL, TIMEOUT, "
        "OUT_OF_MEMORY, BOOT_FAIL, PREEMPTED, DEADLINE",
        "1 left out, as line 4: duration is '-1', must be a number from 0 to 3.2e+09",
        "2 left out, as line 2: state is 'RUNNING': the log ends before the job does",
        "what was left out has 80.0 % of the GPU-hours that the rows name",
    ]
    assert trace.left_out() == "5 lines left out, 80.0 % of the GPU-hours"
    assert read(tmp_path, f"{HELIOS}\n{HELIOS_JOB}\n").left_out() == ""


def test_text_in_utf_16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(f"{HELIOS}\n{HELIOS_JOB}\n".encode("utf-16"))
    with pytest.raises(InvalidInput, match="the text is UTF-16: save it as UTF-8"):
        read_trace(path, on_error=OnError.SKIP)
