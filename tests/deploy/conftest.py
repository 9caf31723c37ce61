"""Helm, built once per machine."""

from __future__ import annotations

import pytest

from coda_lab.host.paths import Settings
from coda_lab.programs.helm import ensure_shown
from tests.deploy.charts import Helm


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    home = tmp_path_factory.mktemp("helm")
    folders = {f"HELM_{name}_HOME": str(home / name) for name in ("CACHE", "CONFIG", "DATA")}
    program = ensure_shown(Settings.from_environ())
    return Helm(program=program, environ={"HOME": str(home), "NO_PROXY": "127.0.0.1", **folders})
