"""`replace` of frozen dataclasses, as that of the standard library but in a fraction of its time.

The simulator copies a job, of some fifty fields, at each of its steps. `dataclasses.replace` asks each field what it is
and calls the generated constructor by keywords; here the values are read at once and put into the slots.
This module stays pure Python: type checkers see the function of the standard library, which knows the fields.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import replace as replace
else:
    T = TypeVar("T")

    class _Plan(NamedTuple):
        """How the fields of a class are read at once, and how each is put into an object."""

        read: Callable[[Any], tuple[Any, ...]]
        put: tuple[Callable[[Any, Any], None], ...]
        put_by_name: Mapping[str, Callable[[Any, Any], None]]

    _PLANS: Final[dict[type, _Plan]] = {}

    def replace(value: T, /, **changes: Any) -> T:
        """Return a copy of the dataclass with these fields changed. Raises TypeError for a name that is no field.

        Its class must have slots and several fields, all of them arguments of the constructor, and no __post_init__."""
        kind = type(value)
        plan = _PLANS.get(kind) or _plan_of(kind)
        copied = kind.__new__(kind)
        for put, one in zip(plan.put, plan.read(value), strict=True):
            put(copied, one)
        for name, one in changes.items():
            if name not in plan.put_by_name:
                raise TypeError(f"{kind.__name__} has no field {name!r}")
            plan.put_by_name[name](copied, one)
        return copied

    def _plan_of(kind: type) -> _Plan:
        names = [field.name for field in fields(kind) if field.init]
        if len(names) < len(fields(kind)) or len(names) < 2 or hasattr(kind, "__post_init__"):
            raise TypeError(f"{kind.__name__} is not made of arguments alone: use dataclasses.replace")
        put_by_name = {name: getattr(kind, name).__set__ for name in names}
        plan = _PLANS[kind] = _Plan(attrgetter(*names), tuple(put_by_name.values()), put_by_name)
        return plan
