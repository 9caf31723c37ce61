"""What is believed of a progress file."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.progress import JobReport, report_from_bytes
from coda.progress.job_report import MOST_BYTES, MOST_EPOCHS, MOST_LOSS, MOST_STEPS

WHOLE = b"step=1200\ntotal_steps=9000\nepoch=3.5\ntotal_epochs=10\nloss=0.25\nloss_epoch=2\nlr=1e-3\nsaved=1000\n"


def test_a_whole_file_is_believed() -> None:
    assert report_from_bytes(WHOLE) == (
        JobReport(
            step=1200,
            total_steps=9000,
            epoch=3.5,
            total_epochs=10,
            loss=0.25,
            loss_epoch=2,
            learning_rate=0.001,
            saved_step=1000,
        ),
        "",
    )


@pytest.mark.parametrize(
    ("content", "report", "fault"),
    [
        pytest.param(b"", JobReport(), "", id="an empty file says nothing"),
        pytest.param(b"later=7\nstep=1\n", JobReport(step=1), "", id="a name of a newer library is left out"),
        pytest.param(b"step=1\nstep=2\n", JobReport(step=2), "", id="a script may append"),
        pytest.param(b" step = 5 \r\n", JobReport(step=5), "", id="spaces and the line ends of Windows"),
        pytest.param(
            b"loss=0.5\nstep=12",
            JobReport(loss=0.5),
            "the last line of the progress file has no end and may be half written: end it with a newline",
            id="half written",
        ),
        pytest.param(
            b"step=-5\nloss=1\n",
            JobReport(loss=1.0),
            "step is '-5': a whole number from 0 to 1000000000000000 is believed",
            id="negative",
        ),
        pytest.param(
            b"step=" + b"9" * 400 + b"\n",
            JobReport(),
            f"step is '{'9' * 40}...': a whole number from 0 to 1000000000000000 is believed",
            id="huge",
        ),
        pytest.param(
            b"loss=nan\nstep=4\n",
            JobReport(step=4),
            "loss is 'nan': a number from -1e+30 to 1e+30 is believed",
            id="a loss that is lost",
        ),
        pytest.param(
            b"step=nan\n",
            JobReport(),
            "step is 'nan': a whole number from 0 to 1000000000000000 is believed",
            id="a step that is no number",
        ),
        pytest.param(
            b"total_steps=0\n",
            JobReport(),
            "total_steps is '0': a whole number from 1 to 1000000000000000 is believed",
            id="nothing to do",
        ),
        pytest.param(
            b'{"step": 1}\n',
            JobReport(),
            "a line of the progress file is '{\"step\": 1}': write name=value",
            id="another format",
        ),
        pytest.param(
            b"step=1\n\xff\xfe\n", JobReport(), "the progress file is not plain text of lines name=value", id="binary"
        ),
        pytest.param(
            b"step=1\n\0\n", JobReport(), "the progress file is not plain text of lines name=value", id="zeros"
        ),
        pytest.param(
            b"#" * MOST_BYTES + b"\n", JobReport(), "the progress file is longer than 64 KiB", id="larger than allowed"
        ),
    ],
)
def test_of_a_bad_file_only_what_is_good_is_believed(content: bytes, report: JobReport, fault: str) -> None:
    assert report_from_bytes(content) == (report, fault)


NAMES = ("step", "total_steps", "epoch", "total_epochs", "loss", "loss_epoch", "lr", "saved")
LINES = st.tuples(st.sampled_from(NAMES), st.text(max_size=30) | st.floats().map(str) | st.integers().map(str))


@given(st.binary(max_size=300) | st.lists(LINES).map(lambda lines: "\n".join(map("=".join, lines)).encode()))
def test_whatever_a_job_writes_it_is_read_within_bounds_and_answered_by_one_short_sentence(content: bytes) -> None:
    report, fault = report_from_bytes(content)
    for steps in (report.step, report.total_steps, report.saved_step):
        assert steps is None or 0 <= steps <= MOST_STEPS
    for epochs in (report.epoch, report.total_epochs, report.loss_epoch):
        assert epochs is None or 0 <= epochs <= MOST_EPOCHS
    for number in (report.loss, report.learning_rate):
        assert number is None or (math.isfinite(number) and abs(number) <= MOST_LOSS)
    assert len(fault) < 300
    assert fault.isprintable()


@given(st.integers(0, len(WHOLE)))
def test_no_number_that_was_cut_is_believed(length: int) -> None:
    whole, _ = report_from_bytes(WHOLE)
    part, _ = report_from_bytes(WHOLE[:length])
    for name in ("step", "total_steps", "epoch", "total_epochs", "loss", "loss_epoch", "learning_rate", "saved_step"):
        assert getattr(part, name) in (None, getattr(whole, name))
