"""Settings of all tests: laws are never timed, since a busy machine may be slow at any moment.
Under CI they try the same cases each time, so that what it refuses is the change's doing; elsewhere new ones.

With CODA_COMPILED=1 they are about the compiled modules (`make compiled`), and refuse to run on the pure ones. Laws try
fewer cases then: it is the same source, only its compiler is asked.

A shell's background job ignores SIGINT, and so would every program that a test starts and interrupts.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

from coda.compiled import is_compiled

COMPILED = os.environ.get("CODA_COMPILED") == "1"

settings.register_profile("coda", deadline=None, derandomize="CI" in os.environ, max_examples=20 if COMPILED else 100)
settings.load_profile("coda")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    if COMPILED and not is_compiled():
        raise pytest.UsageError("CODA_COMPILED=1, but the pure modules were imported: run `make compiled`")
