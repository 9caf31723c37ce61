"""When a kept cell still counts, and the measures that only the studies have."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from coda.policy import PolicyConfig
from coda_sim.traces import Selection
from coda_sim.workload import WorkloadSource
from coda_sim.workload.inaccuracy import Inaccuracy
from studies.cells import CODE, Cell, code_version, key_of, measured
from studies.pool import pool_waits
from tests.benchmarks.studies.orders import cell

JOBS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 500)), max_size=30)


def changed(one: Cell, **fields: object) -> Cell:
    return replace(one, order=replace(one.order, **fields))  # type: ignore[arg-type]  # any field of an order


def test_a_key_is_of_every_option_and_of_the_code() -> None:
    one = cell()
    others = [
        changed(one, seed=2),
        changed(one, policy="coda"),
        changed(one, without=("arrays",)),
        changed(one, inaccuracy=Inaccuracy(forgets=True)),
        changed(one, planner=PolicyConfig(refusal_holders=1)),
        changed(one, source=WorkloadSource(selection=Selection(compress=2))),
        replace(one, pool=True),
    ]
    keys = [key_of(other, "a") for other in [one, *others]] + [key_of(one, "b")]
    assert len(set(keys)) == len(keys)
    assert key_of(replace(one, name="other words"), "a") == keys[0]


def test_a_key_is_of_the_traces_bytes_wherever_it_is(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path, text in zip(paths, ("1", "1", "2"), strict=True):
        path.write_text(text)
    keys = [key_of(changed(cell(), source=WorkloadSource(trace=path)), "a") for path in paths]
    assert keys[0] == keys[1] != keys[2]


def test_the_code_version_is_of_every_byte_that_is_simulated_by(tmp_path: Path) -> None:
    for place in CODE:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix:
            path.write_text("x")
        else:
            (path / "deep").mkdir(parents=True)
            (path / "deep" / "a.py").write_text("x")
    (tmp_path / "docs.py").write_text("x")
    before = code_version(tmp_path)
    (tmp_path / "docs.py").write_text("y")
    assert code_version(tmp_path) == before
    (tmp_path / CODE[1] / "deep" / "a.py").write_text("y")
    assert code_version(tmp_path) != before


def test_a_cell_measures_what_a_summary_has_and_more() -> None:
    found = measured(replace(cell(), pool=True))
    assert (found["jobs_finished"], found["jobs_refused"]) == (11, 1)  # no node has eight GPUs
    assert found["pool_started_10s"] is not None


def test_the_smallest_gang_goes_first_in_the_pool() -> None:
    jobs = [(0.0, 4, 100.0), (1.0, 4, 10.0), (2.0, 1, 10.0), (3.0, 3, 10.0)]
    assert pool_waits(jobs, 4) == [0, 109, 98, 97]


@given(JOBS)
def test_the_pool_is_never_over_full_and_with_all_the_gpus_nobody_waits(jobs: list[tuple[int, int, int]]) -> None:
    waits = pool_waits(jobs, 4)
    spans = [(submit + wait, submit + wait + run, gpus) for (submit, gpus, run), wait in zip(jobs, waits, strict=True)]
    assert min(waits, default=0) >= 0
    assert all(sum(gpus for from_s, to_s, gpus in spans if from_s <= at_s < to_s) <= 4 for at_s, _, _ in spans)
    assert set(pool_waits(jobs, 4 * len(jobs))) <= {0}
