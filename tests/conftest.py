"""Settings of all tests: laws are never timed, since a busy machine may be slow at any moment.

A shell's background job ignores SIGINT, and so would every program that a test starts and interrupts.
"""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("coda", deadline=None)
settings.load_profile("coda")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
