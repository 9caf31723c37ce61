"""The production packages as syntax trees. What is found here does not depend on the module that it stands in."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GENERATED = "_pb2"
NAMING_CALLS = {"TypeVar", "NewType", "cast", "type", "getLogger", "import_module"}  # their strings name symbols
NAMING_ASSIGNMENTS = {"__all__", "__slots__"}


class Unknown(Exception):
    """The source does not say what the value is."""


@dataclass(frozen=True)
class Module:
    """One module. `nodes` leaves out docstrings, annotations and names of symbols."""

    name: str
    tree: ast.Module
    assigned: dict[str, ast.expr] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)  # local name -> module and name in it
    nodes: list[ast.AST] = field(default_factory=list)

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


@cache
def modules() -> dict[str, Module]:
    """All production modules by dotted name."""
    found = {}
    for package in sorted(path.parent for path in ROOT.glob("*/coda*/__init__.py")):
        for path in sorted(package.rglob("*.py")):
            if GENERATED not in path.name:
                parts = path.relative_to(package.parent).with_suffix("").parts
                name = ".".join(part for part in parts if part != "__init__")
                found[name] = _module(name, ast.parse(path.read_text(encoding="utf-8")))
    return found


def in_packages(*packages: str) -> list[Module]:
    """The modules of these packages; of all, when none is named."""
    return [module for module in modules().values() if not packages or module.package in packages]


def _module(name: str, tree: ast.Module) -> Module:
    module = Module(name=name, tree=tree, nodes=list(_walk(tree)))
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            module.assigned[statement.targets[0].id] = statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            module.assigned[statement.target.id] = statement.value
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module.imported[alias.asname or alias.name] = (node.module, alias.name)
    return module


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    left = [tree]
    while left:
        node = left.pop()
        yield node
        for name, child in ast.iter_fields(node):
            children = child if isinstance(child, list) else [child]
            left += [each for each in children if isinstance(each, ast.AST) and not _is_aside(node, name, each)]


def _is_aside(parent: ast.AST, name: str, child: ast.AST) -> bool:
    """True for docstrings, annotations, names of symbols, and the pieces of an f-string."""
    if isinstance(parent, ast.JoinedStr):
        return isinstance(child, ast.Constant)
    if isinstance(parent, ast.Expr):
        return isinstance(child, ast.Constant)
    if isinstance(parent, ast.Call) and name == "args":
        return ast.unparse(parent.func).rpartition(".")[2] in NAMING_CALLS
    if isinstance(parent, ast.Assign) and name == "value":
        return ast.unparse(parent.targets[0]) in NAMING_ASSIGNMENTS
    return name in ("annotation", "returns", "format_spec")


def value(module: Module, node: ast.AST) -> Any:
    """The value of an expression made of literals and constants of modules. Raises Unknown."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_piece(module, piece) for piece in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return value(module, node.left) + value(module, node.right)
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(each for item in node.elts for each in _items(module, item))
    home, definition = defined(module, node)
    if isinstance(definition, ast.expr):
        return value(home, definition)
    raise Unknown(f"{module.name}: {ast.unparse(node)}")


def _items(module: Module, item: ast.expr) -> tuple[Any, ...]:
    if isinstance(item, ast.Starred):
        return tuple(value(module, item.value))
    return (value(module, item),)


def _piece(module: Module, piece: ast.expr) -> str:
    """A part of an f-string; `{}` where only a run can tell."""
    try:
        return str(value(module, piece.value if isinstance(piece, ast.FormattedValue) else piece))
    except Unknown:
        return "{}"


def defined(module: Module, node: ast.AST) -> tuple[Module, ast.expr | ast.ClassDef | None]:
    """What a name, or an attribute of an imported module, stands for, and the module where it is defined."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        home = modules().get(".".join(module.imported.get(node.value.id, ("", ""))))
        return (module, None) if home is None else defined(home, ast.Name(node.attr))
    if not isinstance(node, ast.Name):
        return module, None
    if node.id in module.assigned:
        return module, module.assigned[node.id]
    for statement in module.tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == node.id:
            return module, statement
    origin, name = module.imported.get(node.id, ("", ""))
    return defined(modules()[origin], ast.Name(name)) if origin in modules() else (module, None)


def texts(*packages: str) -> Iterator[str]:
    """Every string in the code of these packages, with constants put in where an f-string names them."""
    for module in in_packages(*packages):
        for node in module.nodes:
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                yield value(module, node)


def constants(package: str) -> set[str]:
    """The strings without spaces that modules of a package give a name to."""
    found = set()
    for module in in_packages(package):
        for node in module.assigned.values():
            try:
                text = value(module, node)
            except Unknown:
                continue
            if isinstance(text, str) and text and " " not in text:
                found.add(text)
    return found


def dataclass_fields(definition: ast.ClassDef) -> dict[str, ast.expr]:
    """The fields of a class and their types, by name."""
    return {
        item.target.id: item.annotation
        for item in definition.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def classes(package: str, wanted: Callable[[ast.ClassDef], bool]) -> list[tuple[Module, ast.ClassDef]]:
    """The classes of a package that are `wanted`, with their modules."""
    return [
        (module, node)
        for module in in_packages(package)
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and wanted(node)
    ]
