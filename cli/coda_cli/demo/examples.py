"""The example jobs, read from their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from coda.errors import InvalidInput
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, KIND
from coda_sim.workload import ClusterShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One TrainingJob of an example file."""

    file: str
    name: str
    manifest: Json

    def fits(self, shape: ClusterShape) -> bool:
        """True if the empty cluster has the GPUs and cores for all ranks; racks and memory are not considered."""
        spec = self.manifest["spec"]
        cores = spec.get("cpusPerReplica", "auto")
        ranks = shape.ranks(spec["gpusPerReplica"], cores if isinstance(cores, int) else 1)
        return ranks >= int(spec.get("replicas", 1))


def examples_in(folder: Path, *, namespace: str, speed: float) -> tuple[Example, ...]:
    """Return every TrainingJob of `folder`, files by name, run times divided by `speed`. Raises InvalidInput."""
    found: list[Example] = []
    for file in sorted(folder.glob("*.yaml")):
        try:
            documents = [document for document in yaml.safe_load_all(file.read_text(encoding="utf-8")) if document]
        except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{file} cannot be read as YAML: {error}") from error
        found += [_example(file, document, namespace, speed) for document in documents]
    if not found:
        raise InvalidInput(f"{folder} has no example (*.yaml with TrainingJobs)")
    _check_names(found)
    return tuple(found)


def _example(file: Path, document: object, namespace: str, speed: float) -> Example:
    if not isinstance(document, dict) or (document.get("apiVersion"), document.get("kind")) != (API_VERSION, KIND):
        raise InvalidInput(f"{file} has an object that is no {KIND} of {API_VERSION}")
    try:
        name = document["metadata"]["name"]
        document["metadata"]["namespace"] = namespace
        metadata = document["spec"]["template"].get("metadata") or {}
        for key, value in (metadata.get("annotations") or {}).items():
            if key.partition("/")[2].startswith("run-seconds"):
                metadata["annotations"][key] = f"{float(value) / speed:g}"
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidInput(f"{file} has a {KIND} without name, template or readable run time: {error!r}") from error
    return Example(file=file.name, name=name, manifest=document)


def _check_names(examples: Sequence[Example]) -> None:
    file_by_name: dict[str, str] = {}
    for example in examples:
        if example.name in file_by_name:
            raise InvalidInput(f"{example.file} and {file_by_name[example.name]} both have a job {example.name}")
        file_by_name[example.name] = example.file
