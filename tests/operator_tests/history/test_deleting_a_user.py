"""The statements of `docs/history.md` that delete what is kept of a user: all of it, and nothing of others."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.engine import URL

from coda_operator.history.store import Store
from coda_operator.history.tables import METADATA
from tests.operator_tests.cpu_history.test_table import job
from tests.operator_tests.history.records import record
from tests.operator_tests.history.test_store import ALWAYS, change

PAGE = Path(__file__).parents[3] / "docs" / "history.md"


def statements() -> list[str]:
    """Those of the page, for the user "ann"."""
    part = PAGE.read_text().split("## Deleting what is kept of a user", 1)[1].split("\n## ", 1)[0]
    block = "\n".join(line for line in part.splitlines() if line.startswith("    "))
    return [words.strip() for words in re.sub("'[^']*'", "'ann'", block).split(";") if words.strip()]


def filled(database: URL) -> Store:
    store = Store(database)
    store.migrate()
    store.write([record(1, owner="ann"), record(2, owner="bob"), record(3, owner="anna"), record(4, owner="ann")])
    store.cpu_jobs.write([job(1, owner="ann"), job(2, owner="bob")], 5.0)
    return store


def test_all_of_a_user_goes_and_nothing_of_others(database: URL) -> None:
    store = filled(database)
    change(database, *statements())
    assert list(store.jobs(*ALWAYS)) == [record(2, owner="bob"), record(3, owner="anna")]
    assert [(line.owner, len(line.waits)) for line in store.cpu_jobs.lines(*ALWAYS)] == [("bob", 2)]
    with store._engine.connect() as connection:  # also of those that no record has any more
        left = {
            name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in METADATA.tables.items()
            if name.endswith("_waits")
        }
    assert left == {"finished_job_waits": 4, "finished_cpu_job_waits": 2}
    store.close()


def test_nothing_of_the_user_is_left_in_the_file_of_sqlite(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    store = Store(URL.create("sqlite", database=str(file)))
    store.migrate()
    store.write([record(n, owner="ann" if n % 2 else "bob", name=f"secret-{n % 2}") for n in range(40)])
    assert b"secret-1" in contents(file)
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA secure_delete = ON")
    for statement in statements():
        connection.execute(statement)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    assert b"secret-1" not in contents(file)
    assert b"secret-0" in contents(file)
    store.close()


def contents(file: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (file, file.with_name(f"{file.name}-wal")) if path.exists())
