"""Where the store is: what of the URL reaches PostgreSQL."""

from __future__ import annotations

from coda_operator.history.store import Store, database_url
from tests.operator_tests.history.databases import PostgreSQL
from tests.operator_tests.history.records import record
from tests.operator_tests.history.test_store import change, tables_of


def test_the_schema_of_the_url_has_the_tables(server: PostgreSQL) -> None:
    """Another application's are in the first one."""
    public = server.new_database()
    change(public, "CREATE SCHEMA platform", "CREATE TABLE finished_jobs (id INTEGER)")
    text = public.render_as_string(hide_password=False) + "&options=-csearch_path%3Dplatform"
    url = database_url(text, "")
    assert url is not None
    store = Store(url)
    store.migrate()
    assert store.write([record(1)]) == 1
    store.close()
    assert "finished_job_waits" in tables_of(url)
