"""A compiled class with an interpreted base takes weak references and never clears them (mypyc issue 1102)."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator
from enum import Enum

import pytest

import coda
import coda_sim

NATIVE_BASES = (Enum, tuple)  # mypyc knows these; exceptions are raised, and nobody keeps a weak reference to one

pytestmark = pytest.mark.skipif(os.environ.get("CODA_COMPILED") == "1", reason="what pure Python refuses is asked")


def classes() -> Iterator[type]:
    for package in (coda, coda_sim):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                found = vars(importlib.import_module(module.name)).values()
                yield from (item for item in found if isinstance(item, type) and item.__module__ == module.name)


def has_an_interpreted_base(kind: type) -> bool:
    own = ("builtins", "coda", "coda_sim")
    return any(base.__module__.split(".")[0] not in own for base in kind.__mro__)


def test_pure_python_refuses_weak_references_to_what_would_not_clear_them() -> None:
    asked = [
        kind
        for kind in classes()
        if has_an_interpreted_base(kind)
        and not issubclass(kind, (*NATIVE_BASES, BaseException))
        and not getattr(kind, "_is_protocol", False)
    ]
    assert "SnapshotValues" in {kind.__name__ for kind in asked}
    assert [kind.__qualname__ for kind in asked if kind.__weakrefoffset__] == []
