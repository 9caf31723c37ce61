"""Helm, built once per machine."""

from __future__ import annotations

import pytest

from tests.deploy.charts import Helm


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm.at(tmp_path_factory.mktemp("helm"))
