import gzip
import tracemalloc
from pathlib import Path

import pytest

from coda.errors import InvalidInput
from coda_sim.traces import JobKind, OnError, RecordedStatus, Row, read_request_table, read_trace
from coda_sim.traces.reader import MAX_BAD
from coda_sim.traces.request_table import RequestTable
from coda_sim.traces.trace import COLUMNS, BadRow, BadRows

HEADER = ",".join(COLUMNS)
GOOD = "hv1,u1,venus,10,60,8,16,,1,passed,gpu"


def trace_file(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "jobs.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def line(**fields: str) -> str:
    """A good line with some fields changed."""
    return ",".join(fields.get(column, value) for column, value in zip(COLUMNS, GOOD.split(","), strict=True))


def test_reads_a_row_with_all_it_says(tmp_path: Path) -> None:
    trace = read_trace(trace_file(tmp_path, GOOD), on_error=OnError.REFUSE)
    assert trace.rows == (
        Row(
            line=2,
            job_id="hv1",
            user="u1",
            virtual_cluster="venus",
            submit_s=10.0,
            duration_s=60.0,
            gpus=8,
            cpus=16.0,
            memory_gib=None,
            nodes_requested=1,
            status=RecordedStatus.PASSED,
            kind=JobKind.GPU,
        ),
    )
    assert trace.bad == ()
    assert trace.was_sorted


def test_empty_fields_are_unknown(tmp_path: Path) -> None:
    path = trace_file(tmp_path, line(user="", cpus="", memory_gib="", nodes_requested="", status=""))
    (row,) = read_trace(path, on_error=OnError.REFUSE).rows
    assert (row.user, row.cpus, row.memory_gib, row.nodes_requested, row.status) == (
        "",
        None,
        None,
        None,
        RecordedStatus.OTHER,
    )


def test_gzip_is_told_by_content_and_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(gzip.compress(f"{HEADER}\n{GOOD}\n".encode()))
    plain = tmp_path / "jobs.csv.gz"
    plain.write_text(f"\ufeff{HEADER}\r\n{GOOD}\r\n\r\n", encoding="utf-8")
    assert read_trace(path, on_error=OnError.SKIP).rows == read_trace(plain, on_error=OnError.SKIP).rows


def test_columns_are_found_by_name_and_unknown_ones_ignored(tmp_path: Path) -> None:
    path = trace_file(tmp_path, "note," + GOOD, header="remark," + HEADER)
    assert read_trace(path, on_error=OnError.REFUSE).rows[0].job_id == "hv1"


def test_unsorted_rows_are_sorted_and_it_is_noted(tmp_path: Path) -> None:
    path = trace_file(tmp_path, line(job_id="late", submit_s="20"), line(job_id="b"), line(job_id="a"))
    trace = read_trace(path, on_error=OnError.REFUSE)
    assert [row.job_id for row in trace.rows] == ["b", "a", "late"]
    assert not trace.was_sorted


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (line(gpus="-1"), "gpus is '-1', must be a number from 0 to 1e+06"),
        (line(gpus="0.5"), "gpus is '0.5', must be a whole number"),
        (line(gpus="1e9"), "gpus is '1e9', must be a number from 0 to 1e+06"),
        (line(gpus=""), "gpus is empty"),
        (line(gpus="0"), "kind is 'gpu' but gpus is 0"),
        (line(kind="cpu"), "kind is 'cpu' but gpus is 8"),
        (line(kind="tpu"), "kind is 'tpu', must be one of gpu, cpu"),
        (line(kind=""), "kind is '', must be one of gpu, cpu"),
        (line(status="done"), "status is 'done', must be one of passed, killed, failed, timeout, other"),
        (line(submit_s="nan"), "submit_s is 'nan', must be a number from 0 to 3.2e+09"),
        (line(submit_s="inf"), "submit_s is 'inf', must be a number from 0 to 3.2e+09"),
        (line(submit_s="1e400"), "submit_s is '1e400', must be a number from 0 to 3.2e+09"),
        (line(submit_s="1_000"), "submit_s is '1_000', must be a number from 0 to 3.2e+09"),
        (line(submit_s="٣"), "submit_s is '٣', must be a number from 0 to 3.2e+09"),
        (line(submit_s="2020-05-28"), "submit_s is '2020-05-28', must be a number from 0 to 3.2e+09"),
        (line(duration_s="0"), "duration_s is '0', must be a number from 1 to 3.2e+09"),
        (line(duration_s=""), "duration_s is empty"),
        (line(cpus="-2"), "cpus is '-2', must be a number from 0 to 1e+07"),
        (line(memory_gib="lots"), "memory_gib is 'lots', must be a number from 0 to 1e+09"),
        (line(nodes_requested="0"), "nodes_requested is '0', must be a number from 1 to 1e+06"),
        (line(nodes_requested="1.5"), "nodes_requested is '1.5', must be a whole number"),
        (line(job_id=""), "job_id '' is not 1 to 253 printable characters"),
        (line(job_id="x" * 300), f"job_id '{'x' * 40}' is not 1 to 253 printable characters"),
        (line(job_id="a\tb"), "job_id 'a\\tb' is not 1 to 253 printable characters"),
        (line(job_id="first"), "job_id 'first' was used before, in line 2"),
        ("just one field", "has 1 fields, the header has 11"),
        (GOOD + ",more", "has 12 fields, the header has 11"),
        ('"hv1,u1', "is not CSV: unexpected end of data"),
    ],
)
def test_a_bad_row_is_named_with_its_line_and_the_others_are_kept(tmp_path: Path, bad: str, sentence: str) -> None:
    path = trace_file(tmp_path, line(job_id="first"), bad, line(job_id="last"))
    trace = read_trace(path, on_error=OnError.SKIP)
    assert trace.bad == (BadRow(line=3, sentence=sentence),)
    assert [row.job_id for row in trace.rows] == ["first", "last"]


def test_text_in_another_encoding_spoils_only_its_own_row(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(f"{HEADER}\n{line(user='Zoë')}\n{line(job_id='hv2')}\n".encode("latin-1"))
    trace = read_trace(path, on_error=OnError.SKIP)
    assert trace.bad == (BadRow(line=2, sentence="is not UTF-8 text"),)
    assert [row.job_id for row in trace.rows] == ["hv2"]


def test_refusing_names_the_first_twenty_bad_rows(tmp_path: Path) -> None:
    path = trace_file(tmp_path, GOOD, *[line(job_id=f"j{n}", gpus="-1") for n in range(25)])
    with pytest.raises(BadRows) as caught:
        read_trace(path, on_error=OnError.REFUSE)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}: 25 bad rows, nothing was used:"
    assert lines[1] == f"{path}:3: gpus is '-1', must be a number from 0 to 1e+06"
    assert len(lines) == 22
    assert lines[-1] == "... and 5 more"
    assert len(caught.value.bad) == 25


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the file is empty"),
        (b"\n", "the file is empty"),
        (f"{HEADER}\n".encode(), "no usable row (0 bad ones)"),
        (f"{HEADER}\nx\n\ny\n".encode(), "no usable row (2 bad ones): there is nothing to run; the first: "),
        (f"{HEADER}\n\nx\ny\n".encode(), "jobs.csv:3: has 1 fields, the header has 11"),
        (b"PK\x03\x04\x00\x00binary", "not a CSV file with the header job_id,user,"),
        (b"a,b,c\n1,2,3\n", "not a CSV file with the header job_id,user,"),
        (HEADER.replace(",gpus", "").encode(), ":1: the header lacks gpus (docs/own-traces.md says"),
        (b"a,b,c\n1,2,3\n", ",status,kind (docs/own-traces.md says what each column holds)"),
        (f"{HEADER},gpus\n".encode(), ":1: the header has gpus twice"),
        (gzip.compress(f"{HEADER}\n{GOOD}\n".encode())[:-9], "the gzip file is damaged or cut short"),
        (b"\x1f\x8bnot gzip at all", "the gzip file is damaged or cut short"),
        (f"{HEADER}\n".encode() + b"x" * 70_000, ":2: longer than 65536 characters: this is no trace"),
    ],
)
def test_a_file_that_is_no_trace_is_one_clear_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        read_trace(path, on_error=OnError.SKIP)
    assert str(caught.value).startswith(str(path))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("start", [f"{HEADER}\n{GOOD}\n", '[{"jobid": "', ""])
def test_a_gigabyte_in_one_line_is_refused_in_little_memory(tmp_path: Path, start: str) -> None:
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress(start.encode()) + gzip.compress(b"a" * 1_048_576) * 1024)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="longer than"):
            read_trace(path, on_error=OnError.SKIP)
        assert tracemalloc.get_traced_memory()[1] < 100 * 1_048_576
    finally:
        tracemalloc.stop()


def test_more_bad_rows_than_can_be_named_are_no_trace(tmp_path: Path) -> None:
    path = trace_file(tmp_path, GOOD, "x\n" * MAX_BAD + "x")
    with pytest.raises(InvalidInput) as caught:
        read_trace(path, on_error=OnError.SKIP)
    assert str(caught.value) == (
        f"{path}: more than 200000 bad rows, this is no trace; the first is {path}:3: has 1 fields, the header has 11"
    )


def test_blank_lines_before_the_header_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"\n \n{HEADER}\n\n{GOOD}\n", encoding="utf-8")
    assert [row.line for row in read_trace(path, on_error=OnError.REFUSE).rows] == [5]
    path.write_text(f"\n{HEADER.replace(',gpus', '')}\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=":2: the header lacks gpus"):
        read_trace(path, on_error=OnError.SKIP)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere\.csv: cannot be read: No such file"):
        read_trace(tmp_path / "nowhere.csv", on_error=OnError.SKIP)
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        read_trace(tmp_path, on_error=OnError.SKIP)


def test_a_request_table_gives_its_gpu_lines(tmp_path: Path) -> None:
    path = trace_file(tmp_path, "0,1,1,2704", "8,40,1,7", "1,1,1,90", header="gpus,cpus,nodes_requested,jobs")
    assert read_request_table(path) == (
        RequestTable(gpus=1, cpus=1.0, jobs=90),
        RequestTable(gpus=8, cpus=40.0, jobs=7),
    )


def test_a_bad_request_table_is_refused_by_file_and_line(tmp_path: Path) -> None:
    path = trace_file(tmp_path, "8,40,1,-7", header="gpus,cpus,nodes_requested,jobs")
    with pytest.raises(InvalidInput, match=r"jobs.csv:2: jobs is '-7', must be a number from 1 to 1e\+09"):
        read_request_table(path)
