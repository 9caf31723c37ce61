"""Whatever a file holds, reading it gives a trace or one sentence."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.errors import InvalidInput
from coda_sim.traces import OnError, read_trace
from coda_sim.traces.trace import COLUMNS
from tests.sim.results.logs import HELIOS, HELIOS_JOB, OPENB, OPENB_POD, PHILLY_JOB, csv_line, read


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


GOOD_FILES = (  # of two jobs each, so that damage to one often leaves the other
    f"{HELIOS}\n{HELIOS_JOB}\n{csv_line(HELIOS_JOB, HELIOS, job_id='2')}\n",
    f"{OPENB}\n{OPENB_POD}\n{csv_line(OPENB_POD, OPENB, name='2')}\n",
    json.dumps([PHILLY_JOB, PHILLY_JOB | {"jobid": "2"}]),
    f"{','.join(COLUMNS)}\nhv1,u1,venus,10,60,8,16,,1,passed,gpu\nhv2,u1,venus,10,60,0,16,,1,passed,cpu\n",
)


@given(
    good=st.sampled_from(GOOD_FILES),
    at=st.integers(0, 1600),
    cut=st.integers(0, 40),
    put=st.binary(max_size=12)
    | st.sampled_from([b"\n", b",", b'"', b"[", b"{}", b"NaN", b"-1", b"1e999", b"\x1f\x8b"]),
    zipped=st.booleans(),
    lost=st.integers(0, 30),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_damaged_file_is_a_trace_or_a_sentence_and_never_a_traceback(
    tmp_path: Path, good: str, at: int, cut: int, put: bytes, zipped: bool, lost: int
) -> None:
    content = good.encode()
    content = content[:at] + put + content[at + cut :]
    content = gzip.compress(content)[: -lost or None] if zipped else content
    path = tmp_path / "log"
    path.write_bytes(content)
    try:
        trace = read_trace(path, on_error=OnError.SKIP)
    except InvalidInput as refused:
        trace, sentence = None, str(refused)
    if trace is None:
        assert str(path) in sentence
        return
    assert all(row.duration_s >= 1 and row.submit_s >= 0 for row in trace.rows)
    assert all(bad.sentence and bad.line >= 1 for bad in trace.bad)
