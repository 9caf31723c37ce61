from pathlib import Path

import pytest

from tests.node.places import fresh_directory


@pytest.fixture
def state() -> Path:
    return fresh_directory()
