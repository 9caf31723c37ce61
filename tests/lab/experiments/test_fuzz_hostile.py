"""The hostile requests: the same ones for the same seed, every kind among the first."""

from coda_lab.experiments.fuzz.hostile_requests import hostile_requests


def test_the_same_seed_makes_the_same_requests() -> None:
    assert list(hostile_requests(3, 200)) == list(hostile_requests(3, 200))
    assert list(hostile_requests(3, 200)) != list(hostile_requests(4, 200))


def test_a_short_run_has_every_kind_a_long_one_has() -> None:
    kinds = {hostile.kind for hostile in hostile_requests(1, 4000)}
    assert {hostile.kind for hostile in hostile_requests(1, 17)} == kinds
    assert len(kinds) == 17
