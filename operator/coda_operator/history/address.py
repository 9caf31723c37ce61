"""Where the store is: the URL that the settings give, or the file that has it, as SQLAlchemy reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from coda.errors import InvalidInput, Outage

_HOSTS: Final = re.compile(
    r"(?P<before>[\w+]+://(?:[^:/]*(?::[^@]*)?@)?+)(?P<hosts>[^/?@]*,[^/?@]*)(?P<after>(?:[/?].*)?)", re.DOTALL
)
"""A URL of libpq with several hosts. Source: PostgreSQL's manual, 34.1.1.2. What stands before them is as in
SQLAlchemy's own pattern: what that takes for a password is never taken for hosts (`?+` gives nothing back)."""
_IN_NO_HOST: Final = frozenset("@&=")
"""A host with one of them is the rest of a password, or of the parameters: it is neither called nor shown."""
_HOST: Final = re.compile(r"(?P<host>[^:\[\]]*|\[(?P<address>[^\[\]]*)\])(?::(?P<port>[0-9]*))?")


@dataclass(frozen=True, slots=True)
class UrlFile:
    """A file with a URL of PostgreSQL. It is read at each connect: a Secret that is mounted follows its password."""

    path: Path

    def url(self) -> URL:
        """Return what it has now. Raises Outage: jobs go on while a Secret is wrong."""
        try:
            found = database_url(self.path.read_text(), "", named=str(self.path))
        except (OSError, UnicodeDecodeError) as error:
            raise Outage(f"{self.path}: {getattr(error, 'strerror', None) or 'it is no text'}") from None
        except InvalidInput as error:
            raise Outage(str(error)) from None
        if found is None or found.get_backend_name() != "postgresql":
            raise Outage(f"{self.path} has no URL of PostgreSQL")
        return found


def database_url(url: str, file: str, *, named: str = "CODA_HISTORY_URL") -> URL | None:
    """Return the URL of the store: `url` if it is given, else of the SQLite file; None if neither is.

    `named`: where the URL is from. Raises InvalidInput."""
    url = url.strip()  # a Secret that was made of a file ends with a new line
    if not url:
        return URL.create("sqlite", database=file) if file else None
    try:
        parsed = _parsed(url)
        kind = parsed.drivername.partition("+")[0]
        if kind in ("postgresql", "postgres"):
            if _IN_NO_HOST & set(parsed.host or ""):
                raise ValueError
            found = parsed.set(drivername="postgresql+psycopg")
            found.get_dialect()().create_connect_args(found)
            return found
    except (ArgumentError, ValueError):
        raise InvalidInput(f"{named} is no URL; give postgresql://USER:PASSWORD@HOST/DATABASE") from None
    if kind == "sqlite" and parsed.database:
        return parsed.set(drivername="sqlite")
    raise InvalidInput(f"{named} names {kind!r}; only postgresql and sqlite (with a file) are supported")


def whereabouts(url: URL) -> URL:
    """What decides which tables a connection meets: all but the password. The account counts, as it has a path."""
    query = {key: value for key, value in url.query.items() if key != "password"}
    return URL.create(
        url.drivername, username=url.username, host=url.host, port=url.port, database=url.database, query=query
    )


def shown(address: URL | UrlFile) -> str:
    """Name the database. No parameter of the URL is in it, since the password may be one."""
    if isinstance(address, UrlFile):
        try:
            url = address.url()
        except Outage:
            return str(address.path)
    else:
        url = address
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
