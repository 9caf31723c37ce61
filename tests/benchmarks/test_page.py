import pytest

from coda.errors import InvalidInput
from rig.page import BEGIN, END, Setting, figure, markdown, verdict, with_tables
from rig.results import Answer, Row

SETTING = Setting(machine="2 cores", date="2026-11-21", commit="abc1234")


def row(value: float, *, budget: str = "<= 10", aim: str = "<= 5") -> Row:
    return Row(name="gang", value=value, unit="s", budget=budget, aim=aim)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        pytest.param(row(5), "aim", id="the aim is reached"),
        pytest.param(row(7), "budget", id="the budget is kept, the aim missed"),
        pytest.param(row(11), "missed", id="both are missed"),
        pytest.param(row(11, budget="", aim=""), "", id="there is no bound"),
        pytest.param(row(7, aim=""), "budget", id="there is no aim"),
    ],
)
def test_says_how_a_value_stands_to_its_bounds(measured: Row, expected: str) -> None:
    assert verdict(measured) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0, "0"), (1234.5, "1234"), (0.91234, "0.912"), (12.345, "12.3"), (0.00012, "0.0001")]
)
def test_shows_three_digits_and_no_exponent(value: float, expected: str) -> None:
    assert figure(value) == expected


def test_writes_machine_date_commit_and_every_row() -> None:
    answers = [
        Answer(question="a", rows=(row(4),)),
        Answer(question="b", rows=(Row(name="memory", value=80, unit="MiB"),)),
    ]
    assert markdown(answers, SETTING).splitlines() == [
        "Machine: 2 cores. 2026-11-21, commit abc1234.",
        "",
        "| what | measured | budget | aim |  |",
        "|---|---|---|---|---|",
        "| gang | 4 s | <= 10 s | <= 5 s | aim |",
        "| memory | 80 MiB |  |  |  |",
    ]


def test_replaces_only_what_stands_between_the_markers() -> None:
    page = f"by hand\n{BEGIN}\nold\n{END}\nby hand too\n"
    once = with_tables(page, "new")
    assert once == f"by hand\n{BEGIN}\nnew\n{END}\nby hand too\n"
    assert with_tables(once, "new") == once


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END}\n{BEGIN}"])
def test_refuses_a_page_without_both_markers_in_order(page: str) -> None:
    with pytest.raises(InvalidInput, match="needs the lines"):
        with_tables(page, "new")
