"""Databases for tests: SQLite files, and a PostgreSQL of this machine's own programs on a socket of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.engine import URL

NO_POSTGRESQL = "PostgreSQL (Debian's package postgresql; `make rigs` installs it as root)"
START_LIMIT_S = 30.0


def postgresql_programs() -> Path | None:
    """The folder of initdb and postgres; None without them."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which("initdb")
    if found is not None:
        folders.insert(0, Path(found).resolve().parent)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


class PostgreSQL:
    """A server for tests alone. Its data are not synced to the disk: only processes die here, no machine."""

    def __init__(self, programs: Path, folder: Path, run_as: dict[str, Any]) -> None:
        self._programs = programs
        self._folder = folder
        self._run_as = run_as
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0

    def start(self) -> None:
        """Start it, and wait until it answers."""
        flags = ("fsync=off", "listen_addresses=", "max_connections=40", "shared_buffers=16MB")
        command = [str(self._programs / "postgres"), "-D", str(self._folder / "data"), "-k", str(self._folder)]
        command += [word for flag in flags for word in ("-c", flag)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._run_as)
        end_s = time.monotonic() + START_LIMIT_S
        while True:
            try:
                psycopg.connect(self._conninfo("postgres")).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self._folder / "log").read_text()
                assert time.monotonic() < end_s, "PostgreSQL does not answer"
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """End it at once, without a checkpoint: its clients lose their connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(START_LIMIT_S)
            self._process = None

    def new_database(self) -> URL:
        """An empty database."""
        self._made += 1
        name = f"history{self._made}"
        with psycopg.connect(self._conninfo("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return URL.create("postgresql+psycopg", username="coda", database=name, query={"host": str(self._folder)})

    def emptied(self, url: URL) -> URL:
        """The same database without its tables: faster than a new one."""
        with psycopg.connect(self._conninfo(url.database or ""), autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return url

    def set_read_only(self, url: URL, is_read_only: bool) -> None:
        """Whether new connections to the database may write; those that are there stay as they are."""
        change = "SET default_transaction_read_only = on" if is_read_only else "RESET default_transaction_read_only"
        with psycopg.connect(self._conninfo("postgres"), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {url.database} {change}".encode())

    def _conninfo(self, database: str) -> str:
        return f"host={self._folder} user=coda dbname={database}"


@contextmanager
def postgresql(programs: Path) -> Iterator[PostgreSQL]:
    """A server that runs until the block ends. PostgreSQL refuses to run as root: then it runs as another user."""
    with tempfile.TemporaryDirectory(prefix="coda-pg-") as name:
        folder = Path(name)
        run_as: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam(next(name for name in ("postgres", "nobody") if _exists(name)))
            run_as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(folder, user.pw_uid, user.pw_gid)
        make = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", "coda", "--auth=trust", "-N", "-E", "UTF8"]
        subprocess.run([*make, "--locale=C"], check=True, capture_output=True, cwd=folder, **run_as)
        server = PostgreSQL(programs, folder, {**run_as, "cwd": folder})
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
