"""Every place of the definition that stores why a job is stopped knows every cause: else its status is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from coda.model.job import StopCause

DEFINITION = Path(__file__).resolve().parents[2] / "crds" / "trainingjobs.yaml"


def causes(schema: Any) -> list[list[str]]:
    """The enums of all fields named `cause`."""
    if isinstance(schema, list):
        return [found for one in schema for found in causes(one)]
    if not isinstance(schema, dict):
        return []
    here = schema.get("cause")
    own = [here["enum"]] if isinstance(here, dict) and "enum" in here else []
    return own + [found for one in schema.values() for found in causes(one)]


def test_the_definition_knows_every_cause() -> None:
    found = causes(yaml.safe_load(DEFINITION.read_text()))
    assert len(found) == 2
    assert all(sorted(words) == sorted(cause.value for cause in StopCause) for words in found)
