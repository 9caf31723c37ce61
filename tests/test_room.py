"""How many modules with control planes run at once."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from coda_lab.host.file_lock import is_locked
from tests import room
from tests.conftest import ROOM, pytest_runtest_protocol
from tests.room import ALWAYS, Room

ONE, OTHER = ModuleType("one"), ModuleType("other")


@pytest.fixture
def crowd(tmp_path: Path) -> list[Room]:
    """As many as always may run, and they do."""
    crowd = [Room(tmp_path) for _ in range(ALWAYS)]
    for each in crowd:
        each.enter(ONE)
    return crowd


def test_some_run_however_busy_the_machine_is(crowd: list[Room], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "is_idle", lambda: pytest.fail("nobody needs to look"))
    for each in crowd:
        each.enter(ONE)  # the next test of its module
        each.enter(OTHER)


def test_more_run_once_cores_are_idle(crowd: list[Room], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([False, False, True])
    monkeypatch.setattr(room, "is_idle", lambda: next(looks))
    more = Room(tmp_path)
    more.enter(ONE)
    assert [*looks] == []
    more.enter(ONE)  # it has its room until it leaves


def test_who_waits_gets_the_room_of_the_first_that_leaves(
    crowd: list[Room], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([lambda: None, crowd[0].leave])

    def busy() -> bool:
        next(looks)()
        return False

    monkeypatch.setattr(room, "is_idle", busy)
    Room(tmp_path).enter(ONE)
    assert [*looks] == []


@pytest.mark.parametrize(
    ("busy", "idle", "low", "memory", "expected"),
    [
        (50, 50, 0, 16, True),
        (70, 30, 0, 16, False),
        (70, 0, 30, 16, False),
        (50, 0, 50, 16, True),
        (50, 50, 0, 1, False),
    ],
)
def test_low_priority_counts_as_idle_and_memory_must_be_there(
    busy: int, idle: int, low: int, memory: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share of 0.35 and 3 GiB are asked for."""
    texts = iter(
        [
            "cpu  1000 200 30 4000 50 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n",
            f"cpu  {1000 + busy} {200 + low} 30 {4000 + idle} 50 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n",
            f"MemTotal: 1 kB\nMemAvailable:   {memory << 20} kB\n",
        ]
    )
    monkeypatch.setattr(Path, "read_text", lambda path: next(texts))
    monkeypatch.setattr(room, "LOOK_S", 0.0)
    assert room.is_idle() == expected


def test_where_nobody_knows_no_more_than_always_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", absent)
    assert not room.is_idle()


def test_a_module_has_its_room_from_its_first_test_to_its_last(crowd: list[Room], tmp_path: Path) -> None:
    crowd[0].leave()
    config = SimpleNamespace(stash=pytest.Stash())
    config.stash[ROOM] = Room(tmp_path)
    first, second, elsewhere = (SimpleNamespace(config=config, module=module) for module in (ONE, ONE, OTHER))
    for item, following, is_held in ((first, second, True), (second, elsewhere, False), (elsewhere, None, False)):
        running = pytest_runtest_protocol(cast(Any, item), cast(Any, following))
        next(running)
        assert all(is_locked(tmp_path / str(number)) for number in range(ALWAYS))
        with contextlib.suppress(StopIteration):
            next(running)
        assert all(is_locked(tmp_path / str(number)) for number in range(ALWAYS)) == is_held
