"""What is kept, what is run again, and what becomes of a run that fails or is killed."""

from pathlib import Path

import pytest

from studies.cells import Cell, key_of
from studies.performing import perform
from studies.store import Store
from tests.benchmarks.studies.orders import cell


def keyed(*cells: Cell, code: str = "a") -> dict[str, Cell]:
    return {key_of(one, code): one for one in cells}


def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    store, cells = Store(folder=tmp_path), keyed(cell(1), cell(2), cell(3))

    def killed(sentence: str) -> None:
        if sentence.startswith("[2/3]"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform(cells, store, 1, killed)
    said: list[str] = []
    assert perform(cells, store, 1, said.append) == {}
    assert said[0].startswith("1 simulation to run, 2 kept from before")
    assert [line.partition(":")[0] for line in said[1:]] == ["[1/1] fifo-skip seed 3"]
    assert None not in [store.get(key) for key in cells]


def test_a_changed_code_version_runs_everything_again(tmp_path: Path) -> None:
    store = Store(folder=tmp_path)
    perform(keyed(cell()), store, 1, str)
    said: list[str] = []
    perform(keyed(cell(), code="b"), store, 1, said.append)
    assert said[0].startswith("1 simulation to run, 0 kept")


def test_half_a_file_is_as_none(tmp_path: Path) -> None:
    store, cells = Store(folder=tmp_path), keyed(cell())
    (key,) = cells
    perform(cells, store, 1, str)
    whole = store.get(key)
    path = tmp_path / f"{key}.json"
    path.write_bytes(path.read_bytes()[:40])
    assert store.get(key) is None
    perform(cells, store, 1, str)
    assert store.get(key) == whole


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_cell_that_fails_is_named_and_the_others_go_on(tmp_path: Path, at_once: int) -> None:
    store, cells = Store(folder=tmp_path), keyed(cell(1, "no-such-policy"), cell(2))
    bad, good = cells
    said: list[str] = []
    failures = perform(cells, store, at_once, said.append)
    assert list(failures) == [bad]
    assert failures[bad].startswith("no-such-policy seed 1: 'no-such-policy' is no policy")
    assert store.get(bad) is None
    assert store.get(good) is not None
    assert sum("failed: " in line for line in said) == 1


def test_the_time_left_is_told_from_the_last_time(tmp_path: Path) -> None:
    store = Store(folder=tmp_path)
    store.put_time("fifo-skip seed 1", 60)
    store.put_time("fifo-skip seed 2", 120)
    said: list[str] = []
    perform(keyed(cell(1), cell(2)), store, 1, said.append)
    assert said[0].endswith("; about 3m left")
    assert said[1].endswith("; about 2m left")
    assert "left" not in said[2]
