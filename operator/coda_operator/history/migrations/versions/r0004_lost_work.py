"""The work that stops for other jobs threw away."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column: 0 for jobs that were recorded before."""
    op.add_column("finished_jobs", sa.Column("lost_s", sa.Float(53), nullable=False, server_default="0"))
