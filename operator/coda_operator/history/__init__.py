"""The history store: one record of each finished job, in SQLite or PostgreSQL.

Nothing about a live job is decided here, and no event loop waits for a database. Read `finished_job` (a TrainingJob ->
its record), `outbox` (which jobs may go), `writer` (the thread that writes), `store` (the database), then `address`,
`engine`, `schema`, `tables` and `migrations`. `run_times_map` hands on what the store teaches; `keeper` wires them.
"""

from coda_operator.history.finished_job import finished_job
from coda_operator.history.keeper import HistoryKeeper, store_of
from coda_operator.history.outbox import Outbox

__all__ = ["HistoryKeeper", "Outbox", "finished_job", "store_of"]
