"""The tables of the store, as the newest of `migrations` leaves them. Times are seconds since 1970.

A new database gets them at once.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
)

REVISION = "0007"
"""Of the newest migration, whose tables these are."""

METADATA = MetaData()

VERSION = Table(
    "coda_alembic_version",  # as alembic makes it, by a name that is no other application's
    METADATA,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="coda_alembic_version_pkc"),
)

EARLIER_VERSION = Table("alembic_version", MetaData(), Column("version_num", String(32), nullable=False))
"""Where operators had the version until `LAST_IN_EARLIER`, as other applications of the same database may."""

LAST_IN_EARLIER = "0006"

SINCE_EARLIER = frozenset({"held_gpu_s", "lost_gpu_s"})
"""The columns that came after `LAST_IN_EARLIER`: tables whose version is taken over may lack them."""

FINISHED_JOBS = Table(
    "finished_jobs",
    METADATA,
    Column("uid", String(64), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("namespace", String(63), nullable=False),
    Column("name", String(253), nullable=False),
    Column("category", String(16), nullable=False),
    Column("model", String(63), nullable=False),
    Column("replicas", Integer, nullable=False),
    Column("gpus_per_replica", Integer, nullable=False),
    Column("cores_asked", Integer),
    Column("cores_tuned", Integer),
    Column("cores_given", Integer, nullable=False),
    Column("ending", String(16), nullable=False),
    Column("reason", String(128), nullable=False),
    Column("failure_class", String(64), nullable=False),
    Column("queued_s", Float(53), nullable=False),
    Column("started_s", Float(53), nullable=False),
    Column("ended_s", Float(53), nullable=False),
    Column("held_s", Float(53), nullable=False),
    Column("run_s", Float(53), nullable=False),
    Column("idle_gpu_s", Float(53)),
    Column("failures", Integer, nullable=False),
    Column("lost_s", Float(53), nullable=False, server_default="0"),
    Column("trial", String(16), nullable=False, server_default=""),  # empty: none
    Column("trial_s", Float(53), nullable=False, server_default="0"),
    Column("owner", String(256), nullable=False, server_default=""),  # empty: the namespace
    Column("held_gpu_s", Float(53)),  # null: `held_s` times the GPUs
    Column("lost_gpu_s", Float(53)),  # null: `lost_s` times the GPUs
    Index("finished_jobs_by_end", "ended_s"),
    Index("finished_jobs_by_owner", "namespace", "ended_s"),
)

FINISHED_JOB_WAITS = Table(
    "finished_job_waits",
    METADATA,
    Column("uid", String(64), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("cause", String(128), primary_key=True),
    Column("seconds", Float(53), nullable=False),
    ForeignKeyConstraint(["uid", "attempt"], ["finished_jobs.uid", "finished_jobs.attempt"], ondelete="CASCADE"),
)

FINISHED_CPU_JOBS = Table(
    "finished_cpu_jobs",
    METADATA,
    Column("line", String(40), primary_key=True),
    Column("hour", Integer, nullable=False),
    Column("namespace", String(63), nullable=False),
    Column("owner", String(256), nullable=False),
    Column("kind", String(128), nullable=False),
    Column("name", String(253), nullable=False),
    Column("controller", String(64), nullable=False),
    Column("category", String(16), nullable=False),
    Column("cpu_m", BigInteger, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("ending", String(16), nullable=False),
    Column("jobs", BigInteger, nullable=False),
    Column("wait_s", Float(53), nullable=False),
    Column("longest_wait_s", Float(53), nullable=False),
    Column("held_s", Float(53), nullable=False),
    Column("run_s", Float(53), nullable=False),
    Column("borrowed_jobs", BigInteger, nullable=False),
    Column("borrowed_s", Float(53), nullable=False),
    Column("reclaimed", BigInteger, nullable=False),
    Column("ended_s", Float(53), nullable=False),
    Index("finished_cpu_jobs_by_end", "ended_s"),
)

FINISHED_CPU_JOB_WAITS = Table(
    "finished_cpu_job_waits",
    METADATA,
    Column("line", String(40), primary_key=True),
    Column("cause", String(128), primary_key=True),
    Column("seconds", Float(53), nullable=False),
    ForeignKeyConstraint(["line"], ["finished_cpu_jobs.line"], ondelete="CASCADE"),
)

COUNTED_CPU_JOBS = Table(
    "counted_cpu_jobs",
    METADATA,
    Column("uid", String(64), primary_key=True),
    Column("counted_s", Float(53), nullable=False),
    Index("counted_cpu_jobs_by_time", "counted_s"),
)
