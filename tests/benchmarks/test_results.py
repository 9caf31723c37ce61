import pytest

from rig.results import Answer, Row, answer_from_json, keeps, median_ratio, percentile


@pytest.mark.parametrize(
    ("value", "bound", "expected"),
    [
        pytest.param(0.9, ">= 0.9", True, id="a least is kept when it is met exactly"),
        pytest.param(0.89, ">= 0.9", False, id="a least is missed below"),
        pytest.param(10.0, "<= 10", True, id="a most is kept when it is met exactly"),
        pytest.param(10.1, "<= 10", False, id="a most is missed above"),
        pytest.param(3.0, "5", True, id="a bound without a sign is a most"),
        pytest.param(0.0, "<= 0", True, id="nothing at all can be asked for"),
        pytest.param(3.0, "", None, id="no bound"),
    ],
)
def test_compares_a_value_with_its_bound(value: float, bound: str, expected: bool | None) -> None:
    assert keeps(value, bound) is expected


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        pytest.param([3.0, 1.0, 2.0], 0.5, 2.0, id="the middle one"),
        pytest.param([float(number) for number in range(1, 101)], 0.99, 99.0, id="99 of 100 are not above it"),
        pytest.param([1.0, 2.0], 0.99, 2.0, id="of few values the greatest"),
        pytest.param([1.0, 2.0], 0.0, 1.0, id="the least"),
    ],
)
def test_takes_the_smallest_value_that_the_share_does_not_exceed(
    values: list[float], share: float, expected: float
) -> None:
    assert percentile(values, share) == expected


def test_has_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_compares_only_what_was_measured_side_by_side() -> None:
    assert median_ratio([(10, 10), (50, 100), (300, 100)]) == 1.0


def test_reads_an_answer_as_it_was_written() -> None:
    answer = Answer(
        question="speed",
        rows=(Row(name="fast", value=1.5, unit="s", budget="<= 2", aim="<= 1"), Row(name="n", value=3, unit="")),
        detail={"pairs": [1, 2]},
    )
    assert answer_from_json(answer.as_json()) == answer


def test_reads_bounds_that_are_numbers_or_missing() -> None:
    read = answer_from_json(b'{"question":"q","rows":[{"name":"a","value":1,"unit":"ms","budget":5,"aim":null}]}')
    assert read.rows == (Row(name="a", value=1.0, unit="ms", budget="5", aim=""),)
