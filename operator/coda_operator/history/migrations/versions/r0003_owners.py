"""The owner of a job, where the API server stamps users."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column. It is empty, for the namespace, of jobs that were recorded before."""
    op.add_column("finished_jobs", sa.Column("owner", sa.String(256), nullable=False, server_default=""))
