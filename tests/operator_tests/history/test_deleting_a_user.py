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
OWNERS = ("bob", "ann", "ann")


def lines_to_type() -> list[str]:
    """What the page says to type at SQLite's file, in its order, for the user "ann"."""
    part = PAGE.read_text().split("## Deleting what is kept of a user", 1)[1].split("\n## ", 1)[0]
    block = "\n".join(line.strip() for line in part.splitlines() if line.startswith("    "))
    block = re.sub(r"^(\..*)$", r"\1;", block, flags=re.MULTILINE)  # a command of the shell ends with its line
    return [words.strip() for words in re.sub("'[^']*'", "'ann'", block).split(";") if words.strip()]


def statements() -> list[str]:
    """Those for SQLite and PostgreSQL."""
    return [words for words in lines_to_type() if words.startswith("DELETE")]


def typed(file: Path, *lines: str) -> list[tuple[int, ...]]:
    """Type the lines at the file, and return the answers, each of one row. Nobody is waited for."""
    connection = sqlite3.connect(file, isolation_level=None, timeout=0)
    answers = [connection.execute(line).fetchone() for line in lines if not line.startswith(".")]
    connection.close()
    return answers


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
    """Nor in what pages had before they were split, as each is that keys in order fill."""
    file = tmp_path / "history.sqlite"
    store = Store(URL.create("sqlite", database=str(file)))
    store.migrate()
    for start in range(0, 2000, 20):
        ids = range(start, start + 20)
        store.write([record(n, uid=f"uid-{n:05}", owner=OWNERS[n % 3], name=f"secret-of-{OWNERS[n % 3]}") for n in ids])
    assert b"secret-of-ann" in contents(file)
    assert typed(file, *lines_to_type())[-1] == (0, 0, 0)
    assert b"secret-of-ann" not in contents(file)
    assert contents(file).count(b"secret-of-bob") >= 667
    assert len(list(store.jobs(*ALWAYS))) == 667
    assert store.write([record(9000)]) == 1  # by a connection that was open all the time
    store.close()


def test_beside_a_reader_the_last_answer_says_that_text_is_left(tmp_path: Path) -> None:
    """The page says to type the last line again until its first number is 0."""
    file = tmp_path / "history.sqlite"
    store = Store(URL.create("sqlite", database=str(file)))
    store.migrate()
    store.write([record(n, owner="ann" if n % 2 else "bob", name=f"secret-{n % 2}") for n in range(40)])
    reader = sqlite3.connect(file, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM finished_jobs").fetchone()
    *_, last = lines = lines_to_type()
    assert typed(file, *lines)[-1][0] == 1
    assert b"secret-1" in contents(file)
    reader.execute("COMMIT")
    assert typed(file, last) == [(0, 0, 0)]
    assert b"secret-1" not in contents(file)
    assert b"secret-0" in contents(file)
    reader.close()
    store.close()


def contents(file: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (file, file.with_name(f"{file.name}-wal")) if path.exists())
