"""Databases, as the tests of the other records have them."""

from tests.operator_tests.history.conftest import database, server

__all__ = ["database", "server"]
