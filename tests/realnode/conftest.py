"""What the real node needs from the machine; with CODA_REQUIRE_RIGS=1 lacking it is a failure."""

from __future__ import annotations

import os

import pytest

from coda_lab.places import Settings
from coda_lab.realnode.pieces import missing_programs
from tests.node.conftest import need


@pytest.fixture(scope="session")
def needs_vm() -> None:
    need(os.geteuid() == 0, "root")
    missing = missing_programs(Settings.from_environ())
    need(not missing, f"{', '.join(missing)} (make node)")
