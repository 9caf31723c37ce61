"""CPU jobs: lines of pods that are alike, the causes of their waits, and which pods are counted already."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the tables. Pods that ended before are in none."""
    op.create_table(
        "finished_cpu_jobs",
        sa.Column("line", sa.String(40), primary_key=True),
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("namespace", sa.String(63), nullable=False),
        sa.Column("owner", sa.String(256), nullable=False),
        sa.Column("kind", sa.String(128), nullable=False),
        sa.Column("name", sa.String(253), nullable=False),
        sa.Column("controller", sa.String(64), nullable=False),
        sa.Column("category", sa.String(16), nullable=False),
        sa.Column("cpu_m", sa.BigInteger, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("ending", sa.String(16), nullable=False),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        sa.Column("wait_s", sa.Float(53), nullable=False),
        sa.Column("longest_wait_s", sa.Float(53), nullable=False),
        sa.Column("held_s", sa.Float(53), nullable=False),
        sa.Column("run_s", sa.Float(53), nullable=False),
        sa.Column("borrowed_jobs", sa.BigInteger, nullable=False),
        sa.Column("borrowed_s", sa.Float(53), nullable=False),
        sa.Column("reclaimed", sa.BigInteger, nullable=False),
        sa.Column("ended_s", sa.Float(53), nullable=False),
    )
    op.create_index("finished_cpu_jobs_by_end", "finished_cpu_jobs", ["ended_s"])
    op.create_table(
        "finished_cpu_job_waits",
        sa.Column("line", sa.String(40), primary_key=True),
        sa.Column("cause", sa.String(128), primary_key=True),
        sa.Column("seconds", sa.Float(53), nullable=False),
        sa.ForeignKeyConstraint(["line"], ["finished_cpu_jobs.line"], ondelete="CASCADE"),
    )
    op.create_table(
        "counted_cpu_jobs",
        sa.Column("uid", sa.String(64), primary_key=True),
        sa.Column("counted_s", sa.Float(53), nullable=False),
    )
    op.create_index("counted_cpu_jobs_by_time", "counted_cpu_jobs", ["counted_s"])
