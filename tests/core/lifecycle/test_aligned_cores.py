"""Kubelets with `full-pcpus-only` refuse ranks whose cores are no whole processor cores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.lifecycle import LifecycleConfig, PodState, Situation, Terms
from coda.lifecycle.steps import next_step
from coda.model import Phase
from coda.model.trial_run import TrialOutcome, TrialRun
from tests.core.gangs import NOW_S, pod, situation

CONFIG = LifecycleConfig()
SAID = "Pod was rejected: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
SHORT = "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 0, requested CPUs = 4"


def refused(message: str, *, finds_cores: bool, multiple: int = 1) -> Situation:
    rank = pod(0, state=PodState.FAILED, disrupted=True, reason="SMTAlignmentError", message=message)
    now = situation(Phase.LAUNCHED, rank, terms=Terms(replicas=1, finds_cores=finds_cores))
    return replace(now, progress=replace(now.progress, cores_multiple=multiple))


@pytest.mark.parametrize(
    ("now", "multiple", "avoids", "says"),
    [
        pytest.param(
            refused(SAID, finds_cores=True), 2, [], "; from now on it asks for a multiple of 2 cores", id="auto"
        ),
        pytest.param(
            refused(SAID, finds_cores=False),
            1,
            ["n1"],
            "the cores of spec.cpusPerReplica, and of each container, must be a multiple of 2",
            id="the cores of the spec",
        ),
        pytest.param(
            refused(SAID, finds_cores=True, multiple=2),
            2,
            ["n1"],
            "the cores of its other containers must be a multiple of 2",
            id="another container",
        ),
        pytest.param(refused(SHORT, finds_cores=True), 1, ["n1"], SHORT, id="too few are free"),
        pytest.param(refused(SAID[:-1] + "0", finds_cores=True), 1, ["n1"], "= 0", id="nonsense"),
    ],
)
def test_what_follows_a_refusal(now: Situation, multiple: int, avoids: list[str], says: str) -> None:
    after = next_step(now, NOW_S, CONFIG).progress
    assert (after.phase, after.disruptions, after.failures) == (Phase.RESTARTING, 1, 0)
    assert (after.cores_multiple, sorted(after.avoid)) == (multiple, avoids)
    assert after.message.endswith(says)


def tried(now: Situation, since_s: float = NOW_S - 60.0) -> Situation:
    """As the trial of its job."""
    trial = TrialRun(attempt=now.progress.attempt, since_s=since_s)
    return replace(now, progress=replace(now.progress, trial=trial))


@pytest.mark.parametrize(
    ("now", "multiple", "avoids", "says"),
    [
        pytest.param(
            refused(SAID, finds_cores=True), 2, [], "; from now on it asks for a multiple of 2 cores", id="auto"
        ),
        pytest.param(
            refused(SAID, finds_cores=False),
            2,
            [],
            "; from now on its trial asks for a multiple of 2 cores",
            id="its part of the cores of the spec",
        ),
        pytest.param(
            refused(SAID, finds_cores=False, multiple=2),
            2,
            ["n1"],
            "the cores of its other containers must be a multiple of 2",
            id="another container",
        ),
        pytest.param(refused(SHORT, finds_cores=False), 1, ["n1"], SHORT, id="too few are free"),
    ],
)
def test_a_trial_that_is_refused_never_ran_and_is_tried_again(
    now: Situation, multiple: int, avoids: list[str], says: str
) -> None:
    """Of cores whose number is Coda's choice: a trial has its part of them, whoever chose them."""
    after = next_step(tried(now), NOW_S, CONFIG).progress
    assert (after.phase, after.reason, after.disruptions) == (Phase.RESTARTING, "SMTAlignmentError", 1)
    assert after.trial is not None
    assert after.trial.is_open
    assert (after.cores_multiple, sorted(after.avoid)) == (multiple, avoids)
    assert after.message.endswith(says)


def test_a_trial_that_is_refused_for_too_long_is_skipped_and_says_why() -> None:
    after = next_step(tried(refused(SAID, finds_cores=False), since_s=NOW_S - 10_000), NOW_S, CONFIG).progress
    assert after.trial is not None
    assert (after.trial.outcome, after.cores_multiple) == (TrialOutcome.SKIPPED, 2)
    assert "SMT Alignment Error" in after.message
