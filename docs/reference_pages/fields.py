"""The page of Coda's objects, from their CustomResourceDefinitions."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from docs.reference_pages.markdown import cell, code, table

_LIMITS: Final = {
    "minimum": "at least",
    "maximum": "at most",
    "maxLength": "characters, at most",
    "maxItems": "at most",
}
_ORDER: Final = ("TrainingJob", "VirtualCluster", "ArrayQuota", "NodeProfile")


def fields_page(folder: Path) -> str:
    """Return the page: for each kind its description, its rules and its fields."""
    definitions = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.yaml"))]
    definitions.sort(key=lambda one: _ORDER.index(one["spec"]["names"]["kind"]))
    return "# Objects\n\nGroup `coda.scheduler`, version `v1alpha1`.\n" + "".join(map(_kind, definitions))


def _kind(definition: Mapping[str, Any]) -> str:
    spec = definition["spec"]
    schema = spec["versions"][0]["schema"]["openAPIV3Schema"]
    names, parts = spec["names"], schema["properties"]
    text = f"\n## {names['kind']}\n\n{_prose(schema.get('description', ''))}\n"
    text += f"- `kubectl get {names['shortNames'][0]}`\n- {spec['scope'].lower()}\n"
    for part in ("spec", "status"):
        if part in parts:
            rows = [*_rows(parts[part], "")]
            text += f"\n### {names['kind']}: {part}\n\n" + table(("field", "type", "what it is"), rows)
    rules = [cell(rule["message"]) for rule in _rules(schema)]
    if rules:
        text += f"\n### {names['kind']}: rules\n\n" + table(
            ("the API server refuses, unless",), [[rule] for rule in rules]
        )
    return text


def _prose(text: str) -> str:
    """Wrapped at 100 characters, with an empty line after it."""
    return textwrap.fill(" ".join(text.split()), 100) + "\n" if text else ""


def _rules(schema: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    yield from schema.get("x-kubernetes-validations") or ()
    for part in (schema.get("properties") or {}).values():
        yield from _rules(part)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), Mapping):
            yield from _rules(schema[name])


def _rows(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    required = schema.get("required") or ()
    for name, part in (schema.get("properties") or {}).items():
        here = f"{path}{name}"
        mark = " (required)" if name in required and path == "" else ""
        yield code(here) + mark, _type(part), cell(" ".join(filter(None, (part.get("description", ""), _limits(part)))))
        if here == "template.spec":
            continue  # a PodSpec, which Kubernetes' own reference explains
        yield from _rows(part, f"{here}.")
        yield from _rows(part.get("items") or {}, f"{here}[].")
        if isinstance(part.get("additionalProperties"), Mapping):
            yield from _rows(part["additionalProperties"], f"{here}.*.")


def _type(part: Mapping[str, Any]) -> str:
    if part.get("x-kubernetes-int-or-string"):
        return "integer or string"
    kind = str(part.get("type", "any"))
    return f"list of {part['items'].get('type', 'any')}" if kind == "array" else kind


def _limits(part: Mapping[str, Any]) -> str:
    said = []
    if "enum" in part:
        said.append(f"One of {', '.join(map(str, part['enum']))}.")
    if "default" in part:
        said.append(f"Default: {part['default']}.")
    for key, words in _LIMITS.items():
        if key in part:
            said.append(f"{words.capitalize()} {part[key]}.")
    return " ".join(said)
