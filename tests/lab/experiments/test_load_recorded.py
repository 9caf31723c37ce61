"""The history has each job of a run once; while its database is locked nobody can write to it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from coda.errors import Outage
from coda_lab.experiments.load.account import Account
from coda_lab.experiments.load.plans import End, JobPlan
from coda_lab.experiments.load.recorded import compare, locked, recorded
from coda_operator.history.store import Store
from tests.operator_tests.history.records import record


def account_of(**ends: End | None) -> Account:
    account = Account()
    for name, end in ends.items():
        account.add_job(JobPlan(name=name, replicas=1, gpus_per_replica=1, cpus_per_replica=1, run_s=1.0)).end = end
    return account


def test_every_job_that_ended_is_asked_for_and_no_other() -> None:
    account = account_of(a=End.SUCCEEDED, b=End.FAILED, c=End.DELETED, d=None, e=End.TAKEN_BACK)
    assert compare(["a", "b", "somebody-elses"], account).problems() == ()
    assert compare(["a"], account).problems() == ("job b ended, and the history has no record of it",)
    assert compare(["a", "b", "c", "c"], account).problems() == (
        "the history has more records of job c than it has ends",
    )


def test_a_job_may_end_once_more_for_each_restore_that_knew_it() -> None:
    account = account_of(a=End.SUCCEEDED)
    account.jobs["a"].restores = 1
    assert compare(["a", "a"], account).problems() == ()
    assert compare(["a", "a", "a"], account).problems() == ("the history has more records of job a than it has ends",)


async def test_a_record_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    store = Store(URL.create("sqlite", database=str(file)))
    store.migrate()
    job = record(1, ended_s=time.time())
    waiting = asyncio.create_task(recorded(file, account_of(**{job.name: End.SUCCEEDED}), limit_s=30.0))
    await asyncio.sleep(0)
    await asyncio.to_thread(store.write, [job])
    assert (await waiting).problems() == ()
    store.close()


async def test_nobody_writes_while_the_database_is_locked(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    store = Store(URL.create("sqlite", database=str(file)))
    store.migrate()
    async with locked(file):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            sqlite3.connect(file, timeout=0.0).execute("CREATE TABLE other (x)")
        with pytest.raises(Outage, match="locked"):
            await asyncio.to_thread(store.write, [record(1, ended_s=time.time())])
    assert await asyncio.to_thread(store.write, [record(1, ended_s=time.time())]) == 1
    store.close()
