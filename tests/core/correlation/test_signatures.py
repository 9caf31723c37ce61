"""When two failures have one signature."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from coda.correlation import signature_of
from coda.correlation.signatures import LONGEST
from coda.diagnosis import Diagnosis, Reason

FOUND = Diagnosis(reason=Reason.INPUTS, explicit=True, line=7, evidence="FileNotFoundError: /data/run-17/a.pt")


def of(evidence: str, job: str = "bert") -> str:
    return signature_of(replace(FOUND, evidence=evidence), job)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("KeyError: 17", "KeyError:  4", id="numbers and spaces"),
        pytest.param("at 0x7f3aBC", "at 0x11", id="addresses"),
        pytest.param(
            "run 1b4e28ba-2fa1-11d2-883f-0016d3cca427 x", "run aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee x", id="UUIDs"
        ),
        pytest.param("shape [32, 128]", "shape [64, 128, 3]", id="shapes"),
        pytest.param("connect 10.0.0.1:80 failed", "connect 10.200.3.44:9000 failed", id="addresses with ports"),
        pytest.param("commit 9fceb02d0ae598e95dc970b74767f19372d61af8", "commit 1234567", id="commits"),
    ],
)
def test_what_changes_from_run_to_run_does_not_count(one: str, other: str) -> None:
    assert of(one) == of(other)


def test_the_name_of_the_job_does_not_count_as_a_word_only() -> None:
    assert of("no /ckpt/bert-a/x", "bert-a") == of("no /ckpt/gpt/x", "gpt")
    assert of("albert failed", "bert") == "Incorrect inputs: albert failed"
    assert of("it is a bug", "it") == "Incorrect inputs: it is a bug"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("No module named 'apex'", "No module named 'torch'", id="another module"),
        pytest.param("KeyError: 'lr'", "KeyError: 'epochs'", id="another key"),
    ],
)
def test_words_count(one: str, other: str) -> None:
    assert of(one) != of(other)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(replace(FOUND, line=None), id="an exit code"),
        pytest.param(replace(FOUND, explicit=False), id="a consequence"),
        pytest.param(replace(FOUND, evidence=""), id="no evidence"),
        pytest.param(replace(FOUND, reason=Reason.NO_SIGNATURE), id="no signature"),
    ],
)
def test_too_little_evidence_is_like_nothing(found: Diagnosis) -> None:
    assert signature_of(found, "bert") == ""


@pytest.mark.parametrize("text", ["1," * 100_000, "a1" * 100_000, " " * 200_000, "#." * 100_000, "0x" * 100_000])
def test_a_hostile_line_takes_linear_time_and_stays_short(text: str) -> None:
    started_s = time.process_time()
    assert len(of(text)) <= LONGEST
    assert time.process_time() - started_s < 20.0
