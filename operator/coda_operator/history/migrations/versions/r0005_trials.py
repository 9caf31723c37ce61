"""Trials: what came of each, and how long it had its GPU."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns: no trial for jobs that were recorded before."""
    op.add_column("finished_jobs", sa.Column("trial", sa.String(16), nullable=False, server_default=""))
    op.add_column("finished_jobs", sa.Column("trial_s", sa.Float(53), nullable=False, server_default="0"))
