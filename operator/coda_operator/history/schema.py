"""The schema of the store: made in a new database, brought up to date in one of an older version.

Its version is in a table of Coda's own. Operators until `LAST_IN_EARLIER` had it in `alembic_version`, which belongs to
whichever application of a database comes first. It is taken over from there, and stays there for a roll-back: such an
operator knows no newer version, and writes what a newer one has left.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, select

from coda.errors import Outage
from coda_operator.history.tables import (
    EARLIER_VERSION,
    FINISHED_JOBS,
    LAST_IN_EARLIER,
    METADATA,
    REVISION,
    SINCE_EARLIER,
    VERSION,
)

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)

MIGRATIONS: Final = Path(__file__).parent / "migrations"


def upgrade(connection: Connection, name: str) -> None:
    """Make the tables in a new database, and change those of an older version, all or none. Raises Outage.

    The caller commits. `name`: of the database, in messages."""
    tables = set(inspect(connection).get_table_names())
    if VERSION.name not in tables:
        if not tables & set(METADATA.tables):
            METADATA.create_all(connection)
            connection.execute(VERSION.insert().values(version_num=REVISION))
            return
        _take_over(connection, name, tables)
    there = connection.scalars(select(VERSION)).all()
    if there != [REVISION]:
        _run_migrations(connection, name, there)


def _take_over(connection: Connection, name: str, tables: Set[str]) -> None:
    """Note the version of tables that operators until `LAST_IN_EARLIER` have left."""
    is_ours = False
    if {EARLIER_VERSION.name, FINISHED_JOBS.name} <= tables:
        there = connection.scalars(select(EARLIER_VERSION.c.version_num)).all()
        is_ours = len(there) == 1 and there[0] in _known(_config(connection))
    if is_ours:
        _run(_config(connection, EARLIER_VERSION.name), name, LAST_IN_EARLIER)
    elif obstacle := _obstacle(connection, SINCE_EARLIER):
        raise Outage(
            f"{name}: it has tables of the history's names, but no version of Coda's: {obstacle}; "
            "give the history a database or a schema of its own"
        )
    VERSION.create(connection)
    connection.execute(VERSION.insert().values(version_num=LAST_IN_EARLIER))


def _run_migrations(connection: Connection, name: str, there: Sequence[str]) -> None:
    config = _config(connection)
    if newer := sorted(set(there) - _known(config)):
        obstacle = _obstacle(connection)
        if obstacle:
            raise Outage(f"{name}: it is of a newer version, {newer[0]}: {obstacle}; upgrade the operator")
        log.warning("%s is of a newer version, %s: what only that one knows is left out of records", name, newer[0])
        return
    _run(config, name, "head")


def _config(connection: Connection, version_table: str = VERSION.name) -> Config:
    # Here, since alembic takes a second to load: only a database of another version needs it.
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes.update(connection=connection, version_table=version_table)
    return config


def _known(config: Config) -> set[str]:
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}


def _run(config: Config, name: str, revision: str) -> None:
    from alembic import command
    from alembic.util import CommandError

    try:
        command.upgrade(config, revision)
    except CommandError as error:
        raise Outage(f"{name}: {first_line(error)}") from error


def _obstacle(connection: Connection, coming: Set[str] = frozenset()) -> str:
    """Return why this version cannot write the database; empty if it can. `coming`: columns that it may lack yet."""
    found = inspect(connection)
    for table in METADATA.sorted_tables:
        if table is VERSION:
            continue
        if not found.has_table(table.name):
            return f"{table.name} is missing"
        there = {column["name"]: column for column in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there and column.name not in coming:
                return f"{table.name}.{column.name} is missing"
        for name, other in there.items():
            is_filled = other["nullable"] or other["default"] is not None or "identity" in other or "computed" in other
            if name not in table.columns and not is_filled:
                return f"{table.name}.{name} needs a value"
    return ""


def first_line(error: Exception) -> str:
    """Return what a database says of an error, in short."""
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0][:300]
