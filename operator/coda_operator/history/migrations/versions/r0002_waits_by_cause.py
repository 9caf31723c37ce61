"""Waits by cause, a row each, so that they can be summed up."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table of waits. Jobs recorded before have none."""
    op.create_table(
        "finished_job_waits",
        sa.Column("uid", sa.String(64), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("cause", sa.String(128), primary_key=True),
        sa.Column("seconds", sa.Float(53), nullable=False),
        sa.ForeignKeyConstraint(["uid", "attempt"], ["finished_jobs.uid", "finished_jobs.attempt"], ondelete="CASCADE"),
    )
