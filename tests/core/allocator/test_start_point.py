from __future__ import annotations

import itertools

import pytest

from coda.allocator import Category, Hints, start_cores
from coda.allocator.start_point import NO_HINTS, Experience, Tuned, add_experience, experienced_cores, in_multiples


@pytest.mark.parametrize(
    ("category", "hints", "gpus", "ceiling", "expected"),
    [
        pytest.param(Category.CV, NO_HINTS, 1, 96, 3, id="CV"),
        pytest.param(Category.NLP, NO_HINTS, 1, 96, 5, id="NLP"),
        pytest.param(Category.SPEECH, NO_HINTS, 1, 96, 5, id="speech"),
        pytest.param(None, NO_HINTS, 1, 96, 4, id="unknown"),
        pytest.param(Category.CV, Hints(many_weights=True), 1, 96, 2, id="VGG16: many weights"),
        pytest.param(Category.NLP, Hints(pipelined=True, many_weights=True), 1, 96, 3, id="Transformer: both"),
        pytest.param(Category.CV, Hints(complex_processing=True), 1, 96, 4, id="complex processing"),
        pytest.param(Category.NLP, NO_HINTS, 4, 96, 20, id="scaled by the GPUs of a rank"),
        pytest.param(Category.CV, Hints(complex_processing=True), 2, 96, 8, id="hints shift before scaling"),
        pytest.param(Category.NLP, NO_HINTS, 8, 28, 28, id="never above the ceiling"),
        pytest.param(Category.NLP, NO_HINTS, 8, 0, 1, id="never below one core"),
    ],
)
def test_proposes_the_first_cores(
    category: Category | None, hints: Hints, gpus: int, ceiling: int, expected: int
) -> None:
    assert start_cores(category, hints, gpus, ceiling) == expected


@pytest.mark.parametrize(
    ("cores", "multiple", "ceiling", "expected"),
    [(3, 1, 96, 3), (3, 2, 96, 4), (4, 2, 96, 4), (5, 4, 96, 8), (7, 2, 7, 6), (1, 2, 1, 2)],
)
def test_cores_in_multiples_are_rounded_up_and_down_only_at_the_ceiling(
    cores: int, multiple: int, ceiling: int, expected: int
) -> None:
    assert in_multiples(cores, multiple, ceiling) == expected


def test_the_guess_without_category_is_configuration() -> None:
    assert start_cores(None, NO_HINTS, 2, 96) == 8


def ended(cores: int, *, gpus: int = 1, owner: str = "ada", category: Category | None = Category.CV) -> Tuned:
    return Tuned(owner=owner, category=category, gpus_per_replica=gpus, cores_per_replica=cores)


def learned(*jobs: Tuned) -> Experience:
    experience: Experience = {}
    for job in jobs:
        add_experience(experience, job)
    return experience


@pytest.mark.parametrize(
    ("jobs", "category", "gpus", "expected"),
    [
        pytest.param([], Category.CV, 1, None, id="nothing finished"),
        pytest.param([ended(4), ended(7), ended(6)], Category.CV, 1, 7, id="the largest, not the latest"),
        pytest.param([ended(9, owner="bob")], Category.CV, 1, None, id="another owner's jobs do not count"),
        pytest.param([ended(9, category=Category.NLP)], Category.CV, 1, None, id="nor another category's"),
        pytest.param([ended(9, category=None)], Category.CV, 1, None, id="nor those of unknown category"),
        pytest.param([ended(4), ended(9, category=None)], None, 1, 9, id="without category, all of the owner's do"),
        pytest.param([ended(9, gpus=4)], Category.CV, 1, 3, id="kept per GPU and rounded up"),
        pytest.param([ended(9, gpus=4)], Category.CV, 8, 18, id="scaled to the rank's GPUs"),
        pytest.param([ended(9, gpus=4), ended(2)], Category.CV, 4, 9, id="largest per GPU"),
        pytest.param([ended(6), ended(14, gpus=4)], Category.CV, 4, 14, id="those with as many GPUs come first"),
        pytest.param([ended(6), ended(14, gpus=4)], Category.CV, 2, 12, id="else the largest per GPU of all"),
        pytest.param([ended(6, category=None), ended(9, gpus=2)], None, 2, 9, id="also without a category"),
        pytest.param([ended(40)], Category.CV, 1, 28, id="never above the ceiling"),
        pytest.param([ended(5, gpus=0)], Category.CV, 1, None, id="a job without GPUs teaches nothing"),
    ],
)
def test_starts_where_the_owner_s_jobs_ended(
    jobs: list[Tuned], category: Category | None, gpus: int, expected: int | None
) -> None:
    assert experienced_cores(learned(*jobs), "ada", category, gpus, 28) == expected


def test_experience_does_not_depend_on_the_order_in_which_jobs_finished() -> None:
    jobs = [ended(4), ended(9, gpus=2), ended(3, category=None), ended(8, owner="bob")]
    assert len({tuple(sorted(map(repr, learned(*order).items()))) for order in itertools.permutations(jobs)}) == 1
