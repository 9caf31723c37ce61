"""Settings of all tests.

Laws are never timed, since a busy machine may be slow at any moment. In CI they try the same cases each time, so that a
red run is the change's doing; elsewhere they try new ones.

Each law tries at most 50 cases, and all of its own number with CODA_LONG=1 (`make verify`).

With CODA_COMPILED=1 the tests are about the compiled modules (`make compiled`), and refuse to run on the pure ones.
Each law then tries at most 20 cases: the source is the same, and only its compiler is asked.

A shell's background job ignores SIGINT, and so would every program that a test starts and interrupts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

from coda.compiled import is_compiled
from coda_lab.host.paths import Settings
from tests.awaited import pytest_runtest_makereport as pytest_runtest_makereport
from tests.lengths import LONG
from tests.room import Room

COMPILED = os.environ.get("CODA_COMPILED") == "1"
MOST_CASES = 20 if COMPILED else 50
ROOM = pytest.StashKey[Room]()
SETTINGS_OF_A_LAW = "_hypothesis_internal_use_settings"

settings.register_profile("coda", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("coda")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "e2e" and hasattr(config, "workerinput"):  # one of several workers
        config.stash[ROOM] = Room(Settings.from_environ().cache / "room")
    if COMPILED and not is_compiled():
        raise pytest.UsageError("CODA_COMPILED=1, but the pure modules were imported: run `make compiled`")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Function, nextitem: pytest.Function | None) -> Generator[None, object, object]:
    """Modules with control planes wait here for room, before the time of their first test begins."""
    room = item.config.stash.get(ROOM, None)
    if room is None:
        return (yield)
    room.enter(item.module)
    ran = yield
    if nextitem is None or nextitem.module is not item.module:  # what the module started is stopped now
        room.leave()
    return ran


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Laws say themselves how many cases they try; in a short run they try fewer."""
    for item in () if LONG else items:
        law = getattr(item, "obj", None)
        if (given := getattr(law, SETTINGS_OF_A_LAW, None)) is not None:
            fewer = settings(given, max_examples=min(given.max_examples, MOST_CASES))
            setattr(law, SETTINGS_OF_A_LAW, fewer)
