"""Where an installation keeps its history: a PostgreSQL of this machine, as its administrator sets it up."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from coda_kube.api.client import Client
from tests.deploy.charts import NAMESPACE, Json
from tests.operator_tests.history.databases import NO_POSTGRESQL, postgresql, postgresql_programs
from tests.rigs import need

SECRET = "coda-history-url"
VALUES: Json = {"database": "postgresql", "postgresql": {"secretName": SECRET}}
"""The chart's `history`."""


@asynccontextmanager
async def database_with_secret(admin: Client) -> AsyncIterator[str]:
    """The URL of an empty database, which is in the Secret, too."""
    programs = postgresql_programs()
    need(programs is not None, NO_POSTGRESQL)
    assert programs is not None
    with postgresql(programs) as server:
        url = server.new_database().set(drivername="postgresql").render_as_string()
        body = {"metadata": {"name": SECRET}, "data": {"url": base64.b64encode(url.encode()).decode()}}
        await admin.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", body)
        yield url


async def recorded(url: str, job: str) -> None:
    """Wait until the history has a finished job of this name."""
    async with asyncio.timeout(60), await psycopg.AsyncConnection.connect(url, autocommit=True) as history:
        while not await (await history.execute("SELECT 1 FROM finished_jobs WHERE name = %s", (job,))).fetchall():
            await asyncio.sleep(0.1)
