"""The page of the settings: the environment variables of operator, extender and agent, with what the code says."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from typing import Any, Final

from coda_agent import settings as agent
from coda_extender import settings as extender
from coda_kube.settings import ProgramSettings
from coda_operator import settings as operator
from docs.reference_pages.markdown import cell, code, table

PROGRAMS: Final[dict[str, type[ProgramSettings]]] = {
    "operator": operator.Settings,
    "extender": extender.Settings,
    "agent": agent.Settings,
}

HEAD: Final = """# Settings

Environment variables. In the chart they are `operator.settings`, `extender.settings` and
`agent.settings`; many have a value of their own in `chart.md`, which is the better place. A bad
value stops the program at its start, with one sentence that names every bad variable.
"""


_WORDS: Final = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))


def settings_page() -> str:
    """Return the page, with a table for each program."""
    return HEAD + "".join(
        f"\n## The {name}\n\n{table(('variable', 'default', 'what it is'), _rows(kind))}"
        for name, kind in PROGRAMS.items()
    )


def _rows(kind: type[ProgramSettings]) -> Iterator[tuple[str, str, str]]:
    says = _said_of_fields(kind)
    for name, info in kind.model_fields.items():
        limits = [
            f"{words} {getattr(limit, key)}" for limit in info.metadata for key, words in _WORDS if hasattr(limit, key)
        ]
        default = "" if info.is_required() or info.default_factory is not None else _text(info.default)
        more = f" ({', '.join(limits)})" if limits else ""
        yield code(f"CODA_{name.upper()}"), code(default), cell(says.get(name, "") + more)


def _said_of_fields(kind: type) -> dict[str, str]:
    """The string below each field, or the comment behind it. Inherited ones count where the class has none."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if issubclass(each, ProgramSettings):
            source = inspect.getsource(each)
            body = ast.parse(source).body[0]
            assert isinstance(body, ast.ClassDef)
            found |= dict(_comments(body.body, source.splitlines())) | dict(_strings_below(body.body))
    return found


def _comments(body: list[ast.stmt], lines: list[str]) -> Iterator[tuple[str, str]]:
    """The comment at the end of a field's line; what follows `noqa` is for the linter and its rule's reason."""
    for field in body:
        if isinstance(field, ast.AnnAssign) and field.end_lineno and field.end_col_offset is not None:
            rest = lines[field.end_lineno - 1].encode()[field.end_col_offset :].decode().strip()
            said = re.sub(r"^noqa: [A-Z0-9]+\s*", "", rest.removeprefix("#").strip())
            if said:
                yield ast.unparse(field.target), said[0].upper() + said[1:] + "."


def _strings_below(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield ast.unparse(field.target), inspect.cleandoc(str(below.value.value))


def _text(value: Any) -> str:
    """A default as the environment writes it."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple | list):
        return ",".join(map(_text, value))
    if hasattr(value, "name") and hasattr(value, "label"):
        return f"{value.name}={value.label}"
    if hasattr(value, "get_secret_value"):
        return str(value.get_secret_value())
    return "" if value is None else str(value)
