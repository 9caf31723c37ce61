"""Settings of all tests: laws are never timed, since a busy machine may be slow at any moment."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("coda", deadline=None)
settings.load_profile("coda")
