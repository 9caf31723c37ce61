import pytest

from coda.errors import InvalidInput
from coda_sim.durations import duration_from_seconds, seconds_from_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("6h", 21600), ("90m", 5400), ("30s", 30), ("1h30m", 5400), ("2d", 172800), ("250ms", 0.25), (" 1.5h ", 5400)],
)
def test_reads_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert seconds_from_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "6", "h", "-6h", "6 h", "1e3s", "6hours", "nan", "٦h", "6h,"])
def test_anything_else_is_one_clear_error(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a duration: write 30s, 90m, 6h, 2d or 1h30m"):
        seconds_from_duration(text)


@pytest.mark.parametrize("text", ["0s", "0h0m", "99999999d"])
def test_nothing_and_more_than_a_hundred_years_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="no usable duration"):
        seconds_from_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.004, "0s"),
        (0.254, "0.25s"),
        (59.999, "1m"),
        (59, "59s"),
        (60, "1m"),
        (5400, "1h 30m"),
        (93784, "1d 2h"),
        (3599.7, "1h"),
    ],
)
def test_shows_at_most_two_units(seconds: float, text: str) -> None:
    assert duration_from_seconds(seconds) == text
