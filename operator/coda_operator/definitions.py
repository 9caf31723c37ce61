"""`python -m coda_operator.definitions`: brings the CustomResourceDefinitions up to date.

It is the chart's hook before each installation and upgrade.

Helm installs the definitions of a chart and never upgrades them. A definition that is older than the one in the cluster
is left out: it is an older chart's, and objects would lose fields. Each has a number that grows with its changes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import Field

from coda.errors import CodaError, InvalidInput
from coda_kube.api.client import Client, NotFound, connect
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_DEFINITION
from coda_kube.settings import ProgramSettings, settings_from_environment

log = logging.getLogger(__name__)

PATH: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MANAGER: Final = "coda-definitions"


class Settings(ProgramSettings):
    """Environment variables `CODA_<FIELD>`."""

    definitions_dir: Path = Field(default=Path("/etc/coda/definitions"))
    """A folder with one definition per file, as JSON."""


async def bring_up_to_date(client: Client, wanted: list[Json]) -> None:
    """Apply each definition, unless the cluster's knows more. Raises a CodaError; safe to repeat."""
    for definition in wanted:
        path = f"{PATH}/{definition['metadata']['name']}"
        try:
            found = await client.get(path)
        except NotFound:
            found = {}
        if is_older(definition, found):
            log.warning("%s in the cluster is newer than this chart's, and stays", definition["metadata"]["name"])
            continue
        await client.apply(path, definition, manager=MANAGER)
        log.info("%s is up to date", definition["metadata"]["name"])


def is_older(definition: Json, found: Json) -> bool:
    """True if the definition has a lower number than the one that was found.

    With the same number, or none: if it lacks fields of that one, and has none that that one lacks."""
    ours, theirs = number_of(definition), number_of(found)
    return ours < theirs if ours != theirs else fields_of(definition) < fields_of(found)


def number_of(definition: Json) -> int:
    """Return how many changes it has seen; 0 for one from before these numbers, or with a word that is none."""
    notes = (definition.get("metadata") or {}).get("annotations") or {}
    number = str(notes.get(ANNOTATION_DEFINITION) or "")
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0


def fields_of(definition: Json) -> frozenset[str]:
    """Every field of every version, as `version.path`."""
    versions = (definition.get("spec") or {}).get("versions") or ()
    return frozenset(
        f"{version['name']}{path}"
        for version in versions
        for path in _paths((version.get("schema") or {}).get("openAPIV3Schema") or {})
    )


def _paths(schema: Json) -> Iterator[str]:
    yield ""
    for name, child in (schema.get("properties") or {}).items():
        for path in _paths(child):
            yield f".{name}{path}"
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            for path in _paths(schema[key]):
                yield f"[]{path}"


def read_definitions(folder: Path) -> list[Json]:
    """Read the files. Raises InvalidInput."""
    try:
        found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    except (OSError, ValueError) as error:
        raise InvalidInput(f"the definitions in {folder} cannot be read: {error}") from error
    if not found:
        raise InvalidInput(f"{folder} has no definitions: mount the ConfigMap coda-definitions there")
    return found


async def _run(settings: Settings) -> None:
    client = await connect(settings.kubeconfig, timeout_s=30.0)
    try:
        await bring_up_to_date(client, read_definitions(settings.definitions_dir))
    finally:
        await client.close()


def main() -> None:
    """Read the settings and run. An error becomes one sentence and exit code 1."""
    try:
        settings = settings_from_environment(Settings)
        logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        asyncio.run(_run(settings))
    except CodaError as error:
        sys.exit(f"coda-definitions: {error}")


if __name__ == "__main__":
    main()
