"""Runs migrations on the connection that `schema` gives. Alembic executes this file; nobody imports it."""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,  # all migrations, or none: SQLite can do it, too
)
with context.begin_transaction():
    context.run_migrations()
