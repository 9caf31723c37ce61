"""What lies in a cluster: the schemas of Coda's objects, the keys and names it uses, the values of its chart."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.surface.sources import ROOT, Unknown, constants, in_packages, texts, value

CHART = ROOT / "deploy" / "helm" / "coda"
NOT_RULES = {"description", "properties", "items", "additionalProperties", "x-kubernetes-validations"}
KEY = re.compile(r"(?:[a-z-]+\.)*coda\.scheduler(?:/(?:[\w.-]|\{\})*)?")
NAME = re.compile(r"coda-[a-z-]+")


def crds() -> set[str]:
    """Every CRD: its names, columns, fields with all that the schema says of them, and CEL rules."""
    found = set()
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
        kind = spec["names"]["kind"]
        found.add(f"{kind} {spec['group']} {spec['scope']} {_json(spec['names'])}")
        for version in spec["versions"]:
            known = {name: part for name, part in version.items() if name not in ("schema", "additionalPrinterColumns")}
            found.add(f"{kind} version {_json(known)}")
            found |= {f"{kind} column {_json(column)}" for column in version.get("additionalPrinterColumns", [])}
            found |= {f"{kind}{line}" for line in _schema(version["schema"]["openAPIV3Schema"], "")}
    return found


def _schema(schema: Any, path: str) -> Iterator[str]:
    yield f"{path} {_json({name: part for name, part in schema.items() if name not in NOT_RULES})}"
    for rule in schema.get("x-kubernetes-validations", []):
        yield f"{path} rule {_json(rule)}"
    for name, part in schema.get("properties", {}).items():
        yield from _schema(part, f"{path}.{name}")
    for name, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(name), dict):
            yield from _schema(schema[name], path + mark)


def _json(part: Any) -> str:
    return json.dumps(part, sort_keys=True, ensure_ascii=False)


def keys() -> set[str]:
    """Keys and names: in the code, in manifests, chart and examples; annotations of simulated pods; API paths."""
    found = {f"key {text}" for text in texts() if KEY.fullmatch(text)}
    found |= {f"name {text}" for text in texts() if NAME.fullmatch(text)}
    found |= {f"API path {text}" for text in texts() if re.fullmatch(r"/apis?/\S+", text)}
    found |= {f"constant {text}" for text in constants("coda_kube")}
    found |= {f"annotation of a simulated pod {name}" for name in _simulated_names()}
    for text in _manifests():
        found |= {f"key in a manifest {key}" for key in KEY.findall(text)}
        found |= {f"name in a manifest {name}" for name in NAME.findall(text)}
    return found


def _manifests() -> Iterator[str]:
    """The manifests without their comments."""
    for folder in ("crds", "deploy", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".yaml", ".tpl", ".txt"):
                yield re.sub(r"(?m)(^|\s)#.*$|\{\{/\*.*?\*/\}\}", "", path.read_text(encoding="utf-8"))


def _simulated_names() -> set[str]:
    """The keys of the lab's tables that have a name with a dash: what follows the prefix of an annotation."""
    found: set[str] = set()
    for module in in_packages("coda_lab"):
        for table in module.assigned.values():
            if isinstance(table, ast.Dict):
                names = {name for key in table.keys if key and isinstance(name := _known(module, key), str)}
                if any(re.fullmatch(r"[a-z]+(-[a-z]+)+", name) for name in names):
                    found |= names
    return found


def _known(module: Any, node: ast.expr) -> Any:
    try:
        return value(module, node)
    except Unknown:
        return None


def chart() -> set[str]:
    """Every value of the chart, with its default."""
    return set(_leaves(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), ""))


def _leaves(part: Any, path: str) -> Iterator[str]:
    if isinstance(part, dict) and part:
        for name, inner in part.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    else:
        yield f"{path} {_json(part)}"
