"""Each test that asks for `database` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from tests.operator_tests.history.databases import NO_POSTGRESQL, PostgreSQL, postgresql, postgresql_programs
from tests.rigs import need


@pytest.fixture(scope="session")
def server() -> Iterator[PostgreSQL]:
    programs = postgresql_programs()
    need(programs is not None, NO_POSTGRESQL)
    assert programs is not None
    with postgresql(programs) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return URL.create("sqlite", database=str(tmp_path / "history.sqlite"))
    running: PostgreSQL = request.getfixturevalue("server")
    return running.new_database()


MOST_THINGS_SAID = 40


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh_databases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[URL]:
    """Empty databases, one for each thing that a writer says."""
    if request.param == "sqlite":
        return (URL.create("sqlite", database=str(tmp_path / f"{number}.sqlite")) for number in range(MOST_THINGS_SAID))
    running: PostgreSQL = request.getfixturevalue("server")
    only = running.new_database()
    return (running.emptied(only) for _ in range(MOST_THINGS_SAID))
