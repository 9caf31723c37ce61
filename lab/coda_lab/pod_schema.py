"""The schema of a pod's spec as a CustomResourceDefinition can carry it, made from an API server's OpenAPI document.

`crds/trainingjobs.yaml` has its result, so that an API server checks the template of a job as it checks a pod: no
unknown fields, hence no unbounded depth, and no list or text without a limit. `tests/e2e/test_crd.py` compares the two,
and `python -m coda_lab.pod_schema openapi.json` prints it, for another version of Kubernetes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

Schema = dict[str, Any]

ROOT: Final = "io.k8s.api.core.v1.PodSpec"
QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING: Final = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"

QUANTITY_SCHEMA: Final[Schema] = {
    "x-kubernetes-int-or-string": True,
    "minimum": 0,
    "maxLength": 32,
    "pattern": r"^\+?([0-9]{1,19}(\.[0-9]{0,9})?|\.[0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$",
}
"""Not negative, and short: no exponent makes it huge. The API server caps what is left."""

MOST_ITEMS: Final = 64
MOST_KEYS: Final = 64
MOST_CHARACTERS: Final = 1024
LONG_TEXT: Final = 32768
ITEMS: Final = {
    "containers": 32,
    "initContainers": 32,
    "resourceClaims": 32,
    "topologySpreadConstraints": 16,
    "env": 256,
    "command": 256,
    "args": 256,
    "values": 256,
    "volumeMounts": 128,
    "volumes": 128,
}
LONG: Final = frozenset({"value", "command", "args"})
"""Fields with long texts: of an environment variable, and of a command."""

MOST_SECONDS: Final = {"terminationGracePeriodSeconds": 3600, "activeDeadlineSeconds": 315_360_000}
"""Others wait for the capacity of a pod that ends; ten years are for ever."""

LEFT_OUT: Final = frozenset({"ephemeralContainers"})  # no pod is created with them


def pod_spec_schema(schemas: Mapping[str, Schema]) -> Schema:
    """Return the structural schema of a PodSpec. `schemas`: `components.schemas` of `/openapi/v3/api/v1`."""
    schema = _structural(schemas, {"$ref": ROOT}, "spec")
    for name in LEFT_OUT:
        schema["properties"].pop(name, None)
    schema["properties"]["containers"]["minItems"] = 1
    return schema


def _structural(schemas: Mapping[str, Schema], schema: Schema, name: str) -> Schema:
    reference = _reference(schema)
    if reference == QUANTITY:
        return dict(QUANTITY_SCHEMA)
    if reference == INT_OR_STRING:
        return {"x-kubernetes-int-or-string": True, "maxLength": 256}
    if reference is not None:
        return _structural(schemas, schemas[reference], name)
    if "properties" in schema:
        fields = {key: _structural(schemas, field, key) for key, field in sorted(schema["properties"].items())}
        required = {"required": sorted(schema["required"])} if schema.get("required") else {}
        return {"type": "object", **required, "properties": fields}
    if schema["type"] == "array":
        items = _structural(schemas, schema["items"], name)
        return {"type": "array", "maxItems": ITEMS.get(name, MOST_ITEMS), "items": items}
    if "additionalProperties" in schema:
        values = _structural(schemas, schema["additionalProperties"], name)
        return {"type": "object", "maxProperties": MOST_KEYS, "additionalProperties": values}
    if schema["type"] == "string":
        return {"type": "string", "maxLength": LONG_TEXT if name in LONG else MOST_CHARACTERS}
    if schema["type"] == "integer":
        limit = {"maximum": MOST_SECONDS[name]} if name in MOST_SECONDS else {}
        return {"type": "integer", "format": schema.get("format", "int64"), **limit}
    return {"type": schema["type"]}


def _reference(schema: Schema) -> str | None:
    for one in (schema, *schema.get("allOf", ())):
        if "$ref" in one:
            return str(one["$ref"]).rpartition("/")[-1]
    return None


def main() -> None:
    """Print the properties as YAML, as they stand in the manifest."""
    document = json.loads(Path(sys.argv[1]).read_text())
    properties = pod_spec_schema(document["components"]["schemas"])["properties"]
    yaml.safe_dump(properties, sys.stdout, default_flow_style=None, width=100, sort_keys=False)


if __name__ == "__main__":
    main()
