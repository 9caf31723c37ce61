"""A short run beside hostile objects with a fixed seed: `make hostile` is the long one, and judges times as well."""

from __future__ import annotations

import pytest

from coda_lab.experiments.hostile.report import Options
from coda_lab.experiments.hostile.run import run

pytestmark = pytest.mark.e2e

OF_A_BUSY_MACHINE = (
    "later",
    "later (median)",
    "times as long",
    "['StatusUnwritable']: never said beside harmless objects",
)


async def test_honest_jobs_start_explain_and_end_as_without_hostile_objects() -> None:
    """No process ends, no part's memory grows beyond what the objects take, and honest jobs go on."""
    outcome = await run(Options(count=40, seed=7, jobs=6, nodes="4x8x48", limit_s=90.0, settle_s=1.0), tell=print)
    assert [problem for problem in outcome.problems() if not problem.endswith(OF_A_BUSY_MACHINE)] == []
    assert outcome.attack.tally.stored_count >= 40
    ends = {job.name: outcome.attack.records[job.name].phase for job in outcome.control.jobs if not job.never_fits}
    assert set(ends.values()) == {"Succeeded"}, ends
