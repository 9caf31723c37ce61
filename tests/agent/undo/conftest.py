from pathlib import Path

import pytest

from tests.agent.places import fresh_directory


@pytest.fixture
def state() -> Path:
    return fresh_directory()
