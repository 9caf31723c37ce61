"""Where the store is: the URL that the settings name, as SQLAlchemy reads it."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from coda.errors import InvalidInput

_HOSTS: Final = re.compile(
    r"(?P<before>[\w+]+://(?:[^:/]*(?::[^@]*)?@)?)(?P<hosts>[^/?@]*,[^/?@]*)(?P<after>(?:[/?].*)?)", re.DOTALL
)
"""A URL of libpq with several hosts. Source: PostgreSQL's manual, 34.1.1.2. What stands before them is as in
SQLAlchemy's own pattern."""
_HOST: Final = re.compile(r"(?P<host>[^:\[\]]*|\[(?P<address>[^\[\]]*)\])(?::(?P<port>[0-9]*))?")


def database_url(url: str, file: str) -> URL | None:
    """Return the URL of the store: `url` if it is given, else of the SQLite file; None if neither is.

    Raises InvalidInput."""
    url = url.strip()  # a Secret that was made of a file ends with a new line
    if not url:
        return URL.create("sqlite", database=file) if file else None
    try:
        parsed = _parsed(url)
        kind = parsed.drivername.partition("+")[0]
        if kind in ("postgresql", "postgres"):
            found = parsed.set(drivername="postgresql+psycopg")
            found.get_dialect()().create_connect_args(found)
            return found
    except (ArgumentError, ValueError):
        raise InvalidInput("CODA_HISTORY_URL is no URL; give postgresql://USER:PASSWORD@HOST/DATABASE") from None
    if kind == "sqlite" and parsed.database:
        return parsed.set(drivername="sqlite")
    raise InvalidInput(f"CODA_HISTORY_URL names {kind!r}; only postgresql and sqlite (with a file) are supported")


def shown(url: URL) -> str:
    """Name the database. No parameter of the URL is in it, since the password may be one."""
    return URL.create(url.get_backend_name(), host=url.host, port=url.port, database=url.database).render_as_string()


def _parsed(text: str) -> URL:
    """SQLAlchemy knows several hosts in the parameters alone."""
    several = _HOSTS.fullmatch(text)
    if several is None:
        return make_url(text)
    hosts, ports = [], []
    for each in several["hosts"].split(","):
        found = _HOST.fullmatch(each)
        if found is None:
            raise ValueError
        hosts.append(found["address"] or found["host"])
        ports.append(found["port"] or "")
    return make_url(several["before"] + several["after"]).update_query_dict(
        {"host": ",".join(hosts)} | ({"port": ",".join(ports)} if any(ports) else {})
    )
