import pytest

from coda.errors import InvalidInput
from coda_sim.traces import Row, Selection, days_from_window, select
from coda_sim.traces.selection import DAY_S
from tests.sim.worlds import row

ROWS = (
    row("hv582026", gpus=1, submit_s=0, duration_s=100),
    row("hv582027", gpus=0, submit_s=50, duration_s=5),
    row("hv582028", gpus=64, submit_s=100, duration_s=9000),
    row("hv582029", gpus=8, submit_s=1.5 * DAY_S, duration_s=50_000),
)


def ids(selection: Selection, rows: tuple[Row, ...] = ROWS) -> list[str]:
    return [one.job_id for one in select(rows, selection, "jobs.csv").rows]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        pytest.param(Selection(), ["hv582026", "hv582027", "hv582028", "hv582029"], id="all"),
        pytest.param(Selection(gpu_jobs_only=True), ["hv582026", "hv582028", "hv582029"], id="GPU jobs only"),
        pytest.param(Selection(max_gpus_per_job=8), ["hv582026", "hv582027", "hv582029"], id="not the large one"),
        pytest.param(
            Selection(gpu_jobs_only=True, max_gpus_per_job=8, limit=2), ["hv582026", "hv582029"], id="limit last"
        ),
        pytest.param(Selection(window_days=(1, 2)), ["hv582029"], id="second day"),
        pytest.param(Selection(window_days=(0, 1.5)), ["hv582026", "hv582027", "hv582028"], id="end is not in it"),
        pytest.param(Selection(limit=0), [], id="none"),
    ],
)
def test_selects(selection: Selection, expected: list[str]) -> None:
    assert ids(selection) == expected
    assert select(ROWS, selection, "jobs.csv").left_out == 4 - len(expected)


def test_keep_follows_the_hash_rule_and_leaves_cpu_jobs_in() -> None:
    hashes = {one.job_id: int(one.job_id[2:]) * 2654435761 % 1000 for one in ROWS}
    for keep in (0, 300, 600, 1000):
        kept = [one.job_id for one in ROWS if one.gpus == 0 or hashes[one.job_id] < keep]
        assert ids(Selection(keep=keep)) == kept
    assert hashes["hv582026"] == 582026 * 2654435761 % 1000 == 786


def test_a_sample_is_another_choice_by_the_same_hash() -> None:
    hashes = {one.job_id: (int(one.job_id[2:]) * 2654435761 + 131 * 7) % 1000 for one in ROWS}
    chosen = Selection(keep=500, sample=7)
    assert ids(chosen) == [one.job_id for one in ROWS if one.gpus == 0 or hashes[one.job_id] < 500]
    assert "% 1000 < 500" in chosen.rule()
    assert "(n * 2654435761 + 131 * 7)" in chosen.rule()


def test_keep_needs_digits_to_hash() -> None:
    with pytest.raises(InvalidInput, match=r"^jobs\.csv:2: job_id 'alpha' has no digits"):
        select((row("alpha"),), Selection(keep=500), "jobs.csv")


def test_times_are_scaled_and_cut_durations_counted() -> None:
    selected = select(ROWS, Selection(compress=20, max_duration_s=6 * 3600), "jobs.csv")
    assert [one.submit_s for one in selected.rows] == [0, 2.5, 5, 1.5 * DAY_S / 20]
    assert [one.duration_s for one in selected.rows] == [100, 5, 9000, 21600]
    assert selected.durations_cut == 1


def test_the_rule_names_every_step() -> None:
    selection = Selection(
        window_days=(0, 7),
        gpu_jobs_only=True,
        max_gpus_per_job=40,
        keep=600,
        limit=300,
        compress=20,
        max_duration_s=21600,
    )
    assert selection.rule() == (
        "days 0 to 7; GPU jobs only; at most 40 GPUs per job; GPU jobs with (n * 2654435761) % 1000 < 600, "
        "n = digits of job_id; the first 300; submit times / 20; run times cut at 6h"
    )
    assert Selection().rule() == "all rows as they are"


@pytest.mark.parametrize("text", ["", "7", "7:0", "1:1", "a:b", "-1:2", "0:7:9"])
def test_a_window_that_cannot_be_read_is_one_clear_error(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a window: write FIRST:LAST in days, as 0:7 for the first week"):
        days_from_window(text)


def test_reads_a_window() -> None:
    assert days_from_window("0.5:7") == (0.5, 7.0)
