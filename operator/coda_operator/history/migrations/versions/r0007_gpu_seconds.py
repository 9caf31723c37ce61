"""GPU-seconds as they were summed while the job lived."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the columns. They are null, for seconds times GPUs, of jobs that were recorded before.

    Tables of this version that were copied without it have them."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("finished_jobs")}
    for name in ("held_gpu_s", "lost_gpu_s"):
        if name not in there:
            op.add_column("finished_jobs", sa.Column(name, sa.Float(53)))
