"""A tuning whose job had to give cores back: it asks for them again, later."""

from __future__ import annotations

from dataclasses import replace

from coda.allocator import TuningPhase, next_tuning
from coda.allocator.core_search import CoreSearch, abandon
from coda.model.job import TAKEN_BACK, WishAnswer
from tests.core.allocator.test_tuning import CONFIG, HERE, NOW_S, begun, measured, wishing


def taken_back(sequence: int, cores: int) -> WishAnswer:
    return WishAnswer(
        sequence=sequence, granted=True, cores=cores, answered_s=NOW_S, deadline_s=NOW_S + 30, code=TAKEN_BACK
    )


def test_cores_that_were_taken_back_are_wished_for_again_only_after_a_while() -> None:
    """Else the job would take them before the CPU job that they were taken back for."""
    fewer = replace(HERE, cores=1, answer=taken_back(7, 1))
    assert next_tuning(begun(), fewer, measured(0.5), CONFIG, NOW_S + CONFIG.wish_again_s - 1) == begun()
    again = next_tuning(begun(), fewer, None, CONFIG, NOW_S + CONFIG.wish_again_s)
    assert (again.phase, again.wish and (again.wish.sequence, again.wish.cores)) == (TuningPhase.WISHING, (8, 3))


def test_a_tuned_job_asks_again_for_what_its_search_found() -> None:
    search = begun().found
    assert isinstance(search, CoreSearch)
    tuned = replace(begun(), phase=TuningPhase.TUNED, found=abandon(search))
    fewer = replace(HERE, cores=1, answer=taken_back(7, 1))
    assert next_tuning(tuned, fewer, None, CONFIG, NOW_S + CONFIG.wish_again_s - 1) == tuned
    assert next_tuning(tuned, fewer, None, CONFIG, NOW_S + CONFIG.wish_again_s).phase is TuningPhase.WISHING


def test_a_wish_that_an_order_to_give_back_overtook_is_made_anew() -> None:
    tuning = wishing()
    after = next_tuning(tuning, replace(HERE, cores=1, answer=taken_back(5, 1)), None, CONFIG, NOW_S + 1)
    assert (after.phase, after.found, after.wish and after.wish.sequence) == (TuningPhase.WISHING, tuning.found, 6)
