"""What the real node needs from the machine; with CODA_REQUIRE_RIGS=1 lacking it is a failure."""

from __future__ import annotations

import os

import pytest

from coda_lab.host.paths import Settings
from coda_lab.realnode.artifacts import missing_programs
from tests.rigs import need


@pytest.fixture(scope="session")
def needs_vm() -> None:
    need(os.geteuid() == 0, "root")
    missing = missing_programs(Settings.from_environ())
    need(not missing, f"{', '.join(missing)} (make node)")
