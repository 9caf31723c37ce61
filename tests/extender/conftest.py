import pytest

from tests.extender.guards import Known


@pytest.fixture
def known() -> Known:
    known = Known()
    for name in ("n1", "n2", "n3"):
        known.node(name)
    return known
