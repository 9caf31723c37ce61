"""Databases, as the tests of the other records have them, and a cluster with a store in memory."""

from __future__ import annotations

import pytest

from tests.operator_tests.cpu_history.replicas import Table
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.history.conftest import database, server

__all__ = ["api", "database", "server", "table"]


@pytest.fixture
def api() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def table() -> Table:
    return Table()
