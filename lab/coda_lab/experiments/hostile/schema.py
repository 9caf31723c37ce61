"""Values that hypothesis draws from the OpenAPI schema that the API server serves, for any path of an object.

Most are of the right type, since only what the API server stores can harm anybody; the rest is odd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from coda_lab.experiments.hostile.kinds import KINDS, Json, Kind, Path

QUANTITIES: Final = (
    "0", "1", "-1", "1k", "1n", "1u", "0.0001", "1.5", "1500m", "1e3", "1e18", "1e999", "-1e999", "1e-999", "1Ei",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "99999999999999999999999999999999", "16Ei",
    "1E", "0x10", "+1", ".5", "5.", "1 Gi", "1gi", "NaN", "Infinity", "", "\u0663", "1e+2",
)  # fmt: skip
INTEGERS: Final = (0, 1, 2, 3, 10, 65535, 65536, -1, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1, 2**63 - 1, -(2**63))
TEXTS: Final = (
    "", "a", "main", "default", "Always", "Never", "True", "false", "null", "nvidia.com/gpu", "kubernetes.io/hostname",
    "0", "-1", "a" * 63, "a" * 254, "A_b.c", "..", "../..", "*", "%s%n", "{{.}}", "\u202eabc", "\ud800", "\u0000",
    "\u00e9" * 60, "\U0001f469\u200d\U0001f467", "x\ny", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
    "0000-00-00T00:00:00Z", "2026-01-01T00:00:00.000000Z",
)  # fmt: skip

_DEEPEST: Final = 9
_SKIPPED: Final[frozenset[Path]] = frozenset(
    {("apiVersion",), ("kind",), ("status",), ("metadata", "name"), ("metadata", "namespace")}
)
_OPEN: Final[Path] = ("spec", "template", "spec")
_QUANTITY: Final = "resource.Quantity"
_INT_OR_STRING: Final = "intstr.IntOrString"

Draw = Callable[[st.SearchStrategy[Any]], Any]


class Schemas:
    """The schema of every kind, from the documents of `/openapi/v3/...` by the path of their group."""

    def __init__(self, document_by_root: Mapping[str, Json]) -> None:
        self._known: dict[str, Json] = {}
        for document in document_by_root.values():
            self._known |= document["components"]["schemas"]
        self._pod_spec = self._known["io.k8s.api.core.v1.PodSpec"]

    def of(self, kind: Kind) -> Json:
        """The schema of `kind`. A TrainingJob's template has that of a pod, which its own schema leaves open."""
        for schema in self._known.values():
            for named in schema.get("x-kubernetes-group-version-kind") or ():
                group = f"{named['group']}/" if named["group"] else ""
                if (named["kind"], f"{group}{named['version']}") == (kind.name, kind.api_version):
                    return schema
        raise LookupError(f"the API server serves no schema of {kind.name}")

    def resolved(self, schema: Json, path: Path | None = None) -> Json:
        """The schema itself instead of a reference to it."""
        while True:
            inner = schema.get("allOf") or []
            reference = schema.get("$ref") or (inner[0].get("$ref") if len(inner) == 1 else None)
            if reference is None:
                is_open_template = path == _OPEN and "x-kubernetes-validations" in schema
                return self._pod_spec if is_open_template else schema
            name = str(reference).rpartition("/")[2]
            if name.endswith((_QUANTITY, _INT_OR_STRING)):
                return {"format": name.rpartition(".")[2]}
            schema = self._known[name]


def roots() -> tuple[str, ...]:
    """The documents that `Schemas` needs."""
    return tuple(dict.fromkeys(kind.root for kind in KINDS))


def drawn_edits(schemas: Schemas, kind: Kind, *, count: int, number: int) -> list[list[tuple[Path, Any]]]:
    """`count` times one to four (path, value) pairs to set in an object of `kind`: the same for the same `number`."""
    found: list[list[tuple[Path, Any]]] = []
    root = schemas.of(kind)

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(_edit(schemas, root), min_size=1, max_size=4))
    def collect(edits: list[tuple[Path, Any]]) -> None:
        found.append(edits)

    collect()
    return found


def apply_edit(body: Json, path: Path, value: Any) -> None:
    """Set `value` at `path`; what is missing on the way is made."""
    inner: Any = body
    for step, following in pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(step, int):
            if not inner:
                inner.append(empty)
            step = 0
        elif not isinstance(inner.get(step), type(empty)):
            inner[step] = empty
        inner = inner[step]
    if isinstance(path[-1], int):
        inner[:1] = [value]
    else:
        inner[path[-1]] = value


@st.composite
def _edit(draw: Draw, schemas: Schemas, root: Json) -> tuple[Path, Any]:
    path: Path = ()
    schema = root
    while True:
        schema = schemas.resolved(schema, path)
        steps = [name for name in schema.get("properties") or () if (*path, name) not in _SKIPPED]
        may_stop = len(path) > 1 and draw(st.integers(0, 6)) == 0
        if schema.get("type") == "array" and not may_stop:
            path, schema = (*path, 0), schema.get("items") or {}
        elif steps and not may_stop:
            rest = [name for name in steps if name != "metadata"]
            name = draw(st.sampled_from(sorted(rest if rest and draw(st.integers(0, 4)) else steps)))
            path, schema = (*path, name), schema["properties"][name]
        elif path:
            return path, draw(_value(schemas, schema, len(path)))
        else:
            raise LookupError("a schema without properties")


@st.composite
def _value(draw: Draw, schemas: Schemas, schema: Json, depth: int) -> Any:
    schema = schemas.resolved(schema)
    kind, form = schema.get("type"), schema.get("format")
    if draw(st.integers(0, 24)) == 0:
        return draw(_anything())
    if form in ("Quantity", "IntOrString"):
        return draw(st.sampled_from(QUANTITIES) | st.sampled_from(INTEGERS))
    if schema.get("enum"):
        return draw(st.sampled_from(schema["enum"]))
    if kind == "boolean":
        return draw(st.booleans())
    if kind in ("integer", "number"):
        return draw(st.sampled_from(INTEGERS))
    if kind == "string":
        return draw(st.sampled_from(TEXTS) | st.text(max_size=20)) if form != "byte" else "AAAA"
    if depth > _DEEPEST:
        return [] if kind == "array" else {}
    if kind == "array":
        return draw(st.lists(_value(schemas, schema.get("items") or {}, depth + 1), max_size=3))
    return draw(_mapping(schemas, schema, depth))


@st.composite
def _mapping(draw: Draw, schemas: Schemas, schema: Json, depth: int) -> Any:
    properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
    if isinstance(more, dict):
        return draw(st.dictionaries(st.sampled_from(TEXTS), _value(schemas, more, depth + 1), max_size=3))
    if not properties:
        return draw(_anything())
    names = set(schema.get("required") or ())
    names |= set(draw(st.lists(st.sampled_from(sorted(properties)), max_size=3)))
    return {name: draw(_value(schemas, properties[name], depth + 1)) for name in sorted(names & set(properties))}


def _anything() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.sampled_from(INTEGERS) | st.sampled_from(TEXTS)
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3),
        max_leaves=6,
    )
