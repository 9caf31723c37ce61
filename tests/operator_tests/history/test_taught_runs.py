"""What the store teaches of run times: the latest of every kind of job, each as long as its work took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy.engine import URL

from coda.history import FinishedRun, run_of
from coda_operator.history.store import MOST_OF_KIND, OLD_OF_KIND, TAUGHT_S, Store
from tests.operator_tests.history.records import record
from tests.operator_tests.history.test_store import ALWAYS


@pytest.fixture
def store(database: URL) -> Iterator[Store]:
    store = Store(database)
    store.migrate()
    yield store
    store.close()


def test_a_burst_of_one_kind_is_not_all_that_is_taught(store: Store) -> None:
    """A planner that begins after a broken cron job would know nothing of anybody else."""
    store.write([record(number, owner="ann") for number in range(3)])
    burst = MOST_OF_KIND + 60
    for start in range(0, burst, 20):
        store.write([record(10 + number, owner="cron", run_s=1.0 + number) for number in range(start, start + 20)])
    runs = store.runs(MOST_OF_KIND + 20)
    assert Counter(run.owner for run in runs) == {"ann": 3, "cron": MOST_OF_KIND}
    assert [run.run_s for run in runs[3:]] == [1.0 + number for number in range(60, burst)]  # the latest, oldest first


def test_a_kind_is_an_owner_a_category_and_a_number_of_gpus(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coda_operator.history.store.MOST_OF_KIND", 2)
    kinds = [
        ("ann", "NLP", 2, 8),
        ("ann", "CV", 2, 8),
        ("ann", "NLP", 2, 4),
        ("bob", "NLP", 2, 8),
        ("ann", "NLP", 1, 16),
    ]
    for number in range(20):
        owner, category, replicas, gpus = kinds[number % 5]
        fields = {"owner": owner, "category": category, "replicas": replicas, "gpus_per_replica": gpus}
        store.write([record(number, **fields)])
    counted = Counter((run.owner, run.category, run.gpus) for run in store.runs(20))
    assert counted == dict.fromkeys([("ann", "NLP", 16), ("ann", "CV", 16), ("ann", "NLP", 8), ("bob", "NLP", 16)], 2)


def test_they_are_looked_for_among_so_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map is written every minute, so a long history must not make it dear."""
    monkeypatch.setattr("coda_operator.history.store.MOST_OF_KIND", 2)
    monkeypatch.setattr("coda_operator.history.store.MOST_READ", 4)
    store.write([record(number, owner="ann" if number < 3 else "cron") for number in range(6)])
    assert [run.owner for run in store.runs(9)] == ["ann", "cron", "cron"]


def test_what_ran_long_ago_is_not_taught_beside_what_runs_now(store: Store) -> None:
    """A user whose runs take ten times as long as a year ago would be told the old times, which are many more."""
    now_s = record(0).ended_s
    store.write([record(n, owner="ann", run_s=360.0, ended_s=now_s - TAUGHT_S - 1.0 - n) for n in range(30)])
    store.write([record(40 + n, owner="ann", run_s=3500.0, ended_s=now_s - TAUGHT_S * n / 11) for n in range(12)])
    assert [run.run_s for run in store.runs(MOST_OF_KIND)] == [3500.0] * 12


def test_a_quiet_cluster_keeps_the_last_runs_of_every_kind(store: Store) -> None:
    """The first job after months must not be all that is known."""
    now_s = record(0).ended_s
    for number, owner in enumerate(("ann", "bob")):
        ends_s = [now_s - 2 * TAUGHT_S - n for n in range(20)]
        store.write(
            [record(50 * number + n, owner=owner, run_s=n + 1.0, ended_s=end_s) for n, end_s in enumerate(ends_s)]
        )
    assert Counter(run.owner for run in store.runs(60)) == {"ann": 20, "bob": 20}  # until somebody runs again
    store.write([record(200, owner="ann", ended_s=now_s)])
    taught = store.runs(60)
    assert Counter(run.owner for run in taught) == {"ann": OLD_OF_KIND, "bob": OLD_OF_KIND}
    assert sorted(run.run_s for run in taught if run.owner == "bob") == [n + 1.0 for n in range(OLD_OF_KIND)]


def test_as_many_are_taught_as_are_asked_for(store: Store) -> None:
    store.write([record(number, owner=f"user-{number}") for number in range(6)])
    assert store.runs(2) == [FinishedRun("user-4", "NLP", 16, 3590.0), FinishedRun("user-5", "NLP", 16, 3590.0)]


def test_work_that_stops_threw_away_is_no_run_time(store: Store) -> None:
    """The planner that sees a job end counts its last attempt. This one ran for an hour after four stops at 54 min."""
    store.write(
        [
            record(1, held_s=4 * 3240.0 + 3600.0, run_s=4 * 3240.0 + 3600.0, lost_s=4 * 3240.0),
            record(2, held_s=5 * 300.0 + 4 * 3240.0 + 3600.0, run_s=4 * 3240.0 + 3600.0, lost_s=4 * 3540.0),
            record(3, held_s=3660.0, run_s=3600.0),
            record(4, held_s=3600.0, run_s=3599.0, lost_s=3600.0),
        ]
    )
    ends = [run.run_s for run in store.runs(9)]
    assert ends == [3600.0, 3900.0, 3600.0, 1.0]  # of the second, all ranks had started after five minutes, each time
    assert ends == [run.run_s for run in map(run_of, store.jobs(*ALWAYS)) if run is not None]
