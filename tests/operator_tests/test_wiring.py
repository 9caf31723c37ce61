"""What `python -m coda_operator` puts together: one clock for all, the API server's."""

from __future__ import annotations

import ast
import inspect

from coda_operator import __main__ as program


def test_whatever_takes_a_clock_gets_the_api_servers() -> None:
    given_by_name: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(program))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and takes_clock(node.func.id):
            bound = inspect.signature(getattr(program, node.func.id)).bind_partial(
                *node.args, **{word.arg: word.value for word in node.keywords if word.arg}
            )
            given = bound.arguments.get("clock")
            given_by_name.setdefault(node.func.id, set()).add("none" if given is None else ast.unparse(given))
    assert {"Certificates", "Reconciler", "WorkQueue"} <= given_by_name.keys()
    assert given_by_name == {name: {"clock"} for name in given_by_name}


def takes_clock(name: str) -> bool:
    found = getattr(program, name, None)
    if not inspect.isclass(found) or issubclass(found, Exception):
        return False
    return "clock" in inspect.signature(found).parameters
