"""Which history store a command reads or writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.engine import URL

from coda.errors import CodaError, InvalidInput, Outage
from coda_operator.history.address import database_url
from coda_operator.history.store import Store

StoreOption = Annotated[
    str | None,
    typer.Option(
        help="SQLite file, or postgresql://USER:PASSWORD@HOST/DATABASE "
        "[default: CODA_HISTORY_URL or CODA_HISTORY_FILE]."
    ),
]


@contextmanager
def opened_store(history: str | None, *, may_create: bool = False) -> Iterator[Store]:
    """Open the store that the option or the environment names; to read it only, unless it `may_create` one.

    Raises InvalidInput, and CodaError where it is away."""
    store = Store(_url(history, may_create=may_create), reads_only=not may_create)
    try:
        yield store
    except Outage as error:
        raise CodaError(f"the history store is away: {error}") from error  # an Outage is the cluster's to commands
    finally:
        store.close()


def _url(history: str | None, *, may_create: bool) -> URL:
    text = history or os.environ.get("CODA_HISTORY_URL") or os.environ.get("CODA_HISTORY_FILE") or ""
    url = database_url(text, "") if "://" in text else database_url("", text)
    if url is None:
        raise InvalidInput("no history store is named: give --history FILE or --history postgresql://...")
    if url.get_backend_name() == "sqlite" and not may_create and not Path(url.database or "").is_file():
        raise InvalidInput(f"--history {url.database}: there is no such file")
    return url
