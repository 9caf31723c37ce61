"""kopf is pinned to one minor version, because parts of it are used that its documentation does not promise."""

from __future__ import annotations

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import kopf
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from coda_operator.feed.lean_kopf import EphemeralMemories

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_kopf_is_pinned_to_the_version_whose_inside_is_used() -> None:
    needs = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["operator"]
    assert "kopf==1.45.*" in needs
    assert version("kopf").startswith("1.45.")


def test_what_is_used_of_kopf_is_there() -> None:
    recall = inspect.signature(ResourceMemories.recall).parameters
    assert {"raw_body", "ephemeral"} <= recall.keys()
    assert inspect.iscoroutinefunction(ResourceMemories.recall)
    assert inspect.isclass(ResourceMemory)
    assert issubclass(EphemeralMemories, ResourceMemories)
    spawn = inspect.signature(kopf.spawn_tasks).parameters
    assert {"registry", "memories", "clusterwide", "standalone"} <= spawn.keys()
    settings = kopf.OperatorSettings()
    for part, names in {
        "persistence": ("finalizer", "progress_storage", "diffbase_storage"),
        "posting": ("enabled",),
        "scanning": ("disabled",),
        "process": ("ultimate_exiting_timeout",),
        "networking": ("request_timeout", "error_backoffs"),
        "queueing": ("error_delays", "idle_timeout"),
        "watching": ("chunk_size", "server_timeout", "inactivity_timeout"),
    }.items():
        assert all(hasattr(getattr(settings, part), name) for name in names)
