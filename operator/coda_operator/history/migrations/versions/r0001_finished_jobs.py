"""Finished jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the table of finished jobs."""
    op.create_table(
        "finished_jobs",
        sa.Column("uid", sa.String(64), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("namespace", sa.String(63), nullable=False),
        sa.Column("name", sa.String(253), nullable=False),
        sa.Column("category", sa.String(16), nullable=False),
        sa.Column("model", sa.String(63), nullable=False),
        sa.Column("replicas", sa.Integer, nullable=False),
        sa.Column("gpus_per_replica", sa.Integer, nullable=False),
        sa.Column("cores_asked", sa.Integer),
        sa.Column("cores_tuned", sa.Integer),
        sa.Column("cores_given", sa.Integer, nullable=False),
        sa.Column("ending", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(128), nullable=False),
        sa.Column("failure_class", sa.String(64), nullable=False),
        sa.Column("queued_s", sa.Float(53), nullable=False),
        sa.Column("started_s", sa.Float(53), nullable=False),
        sa.Column("ended_s", sa.Float(53), nullable=False),
        sa.Column("held_s", sa.Float(53), nullable=False),
        sa.Column("run_s", sa.Float(53), nullable=False),
        sa.Column("idle_gpu_s", sa.Float(53)),
        sa.Column("failures", sa.Integer, nullable=False),
    )
    op.create_index("finished_jobs_by_end", "finished_jobs", ["ended_s"])
    op.create_index("finished_jobs_by_owner", "finished_jobs", ["namespace", "ended_s"])
