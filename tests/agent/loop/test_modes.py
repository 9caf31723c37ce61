"""An agent that may not do everything: what it then decides, writes and says."""

from __future__ import annotations

import pytest

from coda.allocator import SearchOutcome, SearchResult, Tuning, TuningPhase
from coda.allocator.curve import CurvePoint
from coda.model.job import Wish
from coda_agent.modes import ADVISE_ONLY, TuneMode, within
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.test_contention import contended, is_untouched
from tests.agent.loop.test_tuning import WINDOW_S, one

WISH = Wish(sequence=1, cores=5, since_s=0.0, deadline_s=60.0)
FOUND = SearchResult(outcome=SearchOutcome.FOUND, cores=5, curve=(CurvePoint(cores=4, share=0.62),))


@pytest.mark.parametrize(
    ("mode", "phase", "reason"),
    [
        (TuneMode.ON, TuningPhase.WISHING, ""),
        (TuneMode.ADVISE, TuningPhase.ADVISING, ADVISE_ONLY),
    ],
)
def test_with_advice_alone_a_wish_is_a_sentence(mode: TuneMode, phase: TuningPhase, reason: str) -> None:
    tuning = within(mode, Tuning(attempt=1, phase=TuningPhase.WISHING, found=FOUND, wish=WISH))
    assert (tuning.phase, tuning.reason) == (phase, reason)
    if mode is TuneMode.ADVISE:
        assert tuning.wish is None
        assert tuning.message == "GPUs idle 38%: 5 cores per rank should be tried; agents only advise here"


@pytest.mark.parametrize("phase", [phase for phase in TuningPhase if phase is not TuningPhase.WISHING])
def test_what_wishes_for_nothing_is_as_it_is(phase: TuningPhase) -> None:
    tuning = Tuning(attempt=1, phase=phase)
    assert within(TuneMode.ADVISE, tuning) is tuning


@pytest.mark.parametrize("mode", ["off", "observe"])
async def test_no_pod_is_throttled_that_must_only_be_watched(
    make_rig: MakeRig, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    rig = make_rig(throttle=mode)
    await contended(rig)
    assert is_untouched(rig)
    assert not rig.api.events
    observed = rig.metric("coda_agent_observed_actions_total", means="Bandwidth", reason="Contended") or 0
    assert (observed > 0) is (mode == "observe")
    assert ("default/hog: only observed, not done: memory bandwidth" in caplog.text) is (mode == "observe")
    assert bool(rig.agent.sensor.sense((), rig.node.advance()).traffic.by_pod) is (mode == "observe")


@pytest.mark.parametrize("mode", ["off", "advise"])
async def test_no_job_is_resized_that_must_only_be_advised(make_rig: MakeRig, mode: str) -> None:
    rig = make_rig(tune=mode, window_s=WINDOW_S)
    cluster = one(rig, start=3)
    await cluster.run(10 + WINDOW_S + 60)
    assert rig.node.limit_of(cluster.jobs["train"].work) == 3
    tuning = (rig.api.jobs["default/train"]["status"]).get("tuning") or {}
    assert tuning.get("phase") == (None if mode == "off" else "Advising")
    assert "wish" not in tuning
    if mode == "advise":
        assert tuning["message"].startswith("GPUs idle ")


@pytest.mark.parametrize("mode", ["off", "advise", "on"])
async def test_the_node_profile_says_what_becomes_of_cores(make_rig: MakeRig, mode: str) -> None:
    """Else nobody can tell an agent that is set not to tune from one that is dead."""
    rig = make_rig(tune=mode)
    await rig.run(10)
    assert rig.api.profiles[-1]["status"]["tune"] == mode
