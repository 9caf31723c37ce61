"""GPU-seconds as they were summed while the job lived."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the columns. They are null, for seconds times GPUs, of jobs that were recorded before."""
    op.add_column("finished_jobs", sa.Column("held_gpu_s", sa.Float(53)))
    op.add_column("finished_jobs", sa.Column("lost_gpu_s", sa.Float(53)))
