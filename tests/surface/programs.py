"""What the programs show: metrics, settings, files on nodes, and the names in what they send."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from tests.surface.sources import (
    Module,
    Unknown,
    classes,
    constants,
    dataclass_fields,
    defined,
    in_packages,
    texts,
    value,
)

CONSTRUCTED = {"labels": 2, "labelnames": 2, "buckets": 8}  # argument -> its position
FAMILY = {"labels": 3}
IN_CLUSTER = ("coda", "coda_kube", "coda_operator", "coda_extender", "coda_agent")
TALKING = (*IN_CLUSTER, "coda_cli", "coda_sim")
SHOWN_BY_NAME = {"NO_LIVE_PLAN", "LATE", "HOST_BRIDGE", "CORES_ASSUMED", "HALF_BOUND_GANG"}  # one member of each Enum
PLAIN_TYPES = {"int", "float", "str", "bool", "tuple", "None"}


def metrics() -> set[str]:
    """Every Prometheus metric: its type, name, labels and buckets."""
    return set().union(*metrics_by_package().values())


def metrics_by_package() -> dict[str, set[str]]:
    """The same, by the package that makes them."""
    found: dict[str, set[str]] = {}
    for module in in_packages():
        for node in module.nodes:
            if isinstance(node, ast.Call) and node.args and (kind := _metric_kind(module, node)):
                found.setdefault(module.package, set()).add(_metric(module, node, kind))
    return found


def _metric_kind(module: Module, node: ast.Call) -> str | None:
    """The class of prometheus_client that is called, under whatever name; None for all else."""
    origin, name = module.imported.get(ast.unparse(node.func), ("", ""))
    is_metric = origin.startswith("prometheus_client") and re.fullmatch(
        r"(Counter|Gauge|Histogram|Summary|Info|Enum)(MetricFamily)?", name
    )
    return name if is_metric else None


def _metric(module: Module, node: ast.Call, kind: str) -> str:
    positions = FAMILY if kind.endswith("Family") else CONSTRUCTED
    given: dict[str, ast.expr] = {word.arg: word.value for word in node.keywords if word.arg}
    given |= {name: node.args[place] for name, place in positions.items() if len(node.args) > place}
    labels = given.get("labels", given.get("labelnames"))
    line = f"{value(module, node.args[0])} {kind}"
    if labels is not None:
        line += f" labels {', '.join(value(module, labels))}"
    if "buckets" in given:
        line += f" buckets {', '.join(map(str, value(module, given['buckets'])))}"
    return line


def metric_like() -> set[str]:
    """Strings in the code that look like names of metrics and name no package and nothing of the history."""
    packages = {module.package for module in in_packages()}
    history = {"coda_alembic_version", "coda_alembic_version_pkc", "coda_whereabouts"}
    return {text for text in texts() if re.fullmatch(r"coda_\w+", text)} - packages - history


def settings() -> set[str]:
    """Every setting with its default and limits, and every other name that looks like an environment variable."""
    found = {line for kind, package in _settings_classes() for line in _settings_of(kind, package)}
    names = {text for text in texts() if re.fullmatch(r"[A-Z]+(_[A-Z0-9]+)+|RANK|KUBECONFIG", text)}
    return found | {f"in capitals {name}" for name in names}


def _settings_classes() -> Iterator[tuple[Any, str]]:
    """The classes of the programs; what they share is in `coda_kube.settings`."""
    for package in sorted({module.package for module in in_packages()} - {"coda_kube"}):
        for module, definition in classes(package, _is_settings):
            yield getattr(importlib.import_module(module.name), definition.name), package


def _is_settings(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith("Settings") for base in node.bases)


def _settings_of(kind: Any, package: str) -> Iterator[str]:
    for name, info in kind.model_fields.items():
        line = f"{package} {kind.model_config['env_prefix']}{name.upper()} = "
        if info.default_factory is not None:
            line += "(computed)"
        else:
            line += "(required)" if info.is_required() else repr(_plain(info.default))
        limits = [repr(limit) for limit in info.metadata if type(limit).__module__ == "annotated_types"]
        yield " ".join([line, *limits])


def _plain(default: Any) -> Any:
    """A value without the names of classes."""
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        return dataclasses.asdict(default)
    if isinstance(default, tuple | list):
        return [_plain(each) for each in default]
    if isinstance(default, Enum):
        return default.value
    return str(default) if isinstance(default, Path) else default


def node_files() -> set[str]:
    """The names that the agent uses on a node: its files, those of the kernel, its groups; the journal's fields."""
    found = {f"name {text}" for text in constants("coda_agent")}
    found |= {f"file {name}" for name in joined("coda_agent")}
    journals = classes("coda_agent", lambda node: {"boot_id", "original", "replaced"} <= dataclass_fields(node).keys())
    for module, definition in journals:
        found |= {f"journal {line}" for line in _kept(module, definition)}
    return found


def joined(package: str) -> set[str]:
    """The names of files that modules of a package join to a folder."""
    found = set()
    for module in in_packages(package):
        for node in module.nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                try:
                    name = value(module, node.right)
                except Unknown:
                    continue
                if isinstance(name, str):
                    found.add(name)
    return found


def wire() -> set[str]:
    """Routes, names of JSON fields, words that are values of fields, and what is kept in a status."""
    found = {route for package in IN_CLUSTER for module in in_packages(package) for route in _routes(module)}
    found |= {f"field {name}" for module in in_packages(*TALKING) for name in _field_names(module)}
    found |= {f"word {text}" for text in texts(*IN_CLUSTER) if re.fullmatch(r"[A-Z][a-z]+([A-Z]+[a-z]*)*", text)}
    for module, members in _enums():
        if module.package in IN_CLUSTER:
            found |= {f"word {word}" for word in members.values() if word and " " not in word}
        if members.keys() & SHOWN_BY_NAME:
            found |= {f"word by name {name}" for name in members}
    searches = classes("coda", lambda node: {"trying", "kept", "moves"} <= dataclass_fields(node).keys())
    for module, definition in searches:
        found |= {f"status.tuning.search {line}" for line in _kept(module, definition)}
    return found


def _routes(module: Module) -> Iterator[str]:
    """Routes by decorator, by a call of `add_get`, or by a table of paths, which are posted to."""
    for node in module.nodes:
        for call in (node, *getattr(node, "decorator_list", ())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
                verb, path = call.func.attr, getattr(call.args[0], "value", None)
                if str(path).startswith("/") and (call is not node or verb.startswith("add_")):
                    yield f"route {module.package} {verb.removeprefix('add_').upper()} {path}"
        if isinstance(node, ast.Dict) and module.package == "coda_extender":
            paths = [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            yield from (f"route {module.package} POST {path}" for path in paths if path.startswith("/"))


def _field_names(module: Module) -> Iterator[str]:
    """The keys of mappings that are written, read, or asked for."""
    for node in module.nodes:
        found: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            found += node.keys
        elif isinstance(node, ast.Subscript):
            found.append(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
            found += node.args[:1]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            found.append(node.left)
        names = [key.value for key in found if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        yield from (name for name in names if re.fullmatch(r"[\w.$-]{2,}", name))


def _enums() -> Iterator[tuple[Module, dict[str, str]]]:
    """The members of every Enum, by name."""
    for module in in_packages():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
                assigned = [item for item in node.body if isinstance(item, ast.Assign)]
                yield module, {ast.unparse(item.targets[0]): _word(item.value) for item in assigned}


def _word(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _kept(module: Module, definition: ast.ClassDef) -> Iterator[str]:
    """The fields of a class that is written as JSON, and of the classes in it; the names of classes are left out."""
    for name, annotation in dataclass_fields(definition).items():
        names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
        text = ast.unparse(annotation)
        for other in names - PLAIN_TYPES:
            text = re.sub(rf"\b{other}\b", "object", text)
            home, inner = defined(module, ast.Name(other))
            if isinstance(inner, ast.ClassDef):
                yield from (f"{name}.{line}" for line in _kept(home, inner))
        yield f"{name}: {text}"
