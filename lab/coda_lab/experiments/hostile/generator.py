"""The endless objects of a seed: hostile ones of every class and kind, or as many harmless ones. Talks to nobody."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

from coda_lab.experiments.hostile.kinds import (
    ACCIDENT_NAMESPACE,
    HOSTILE_NAMESPACE,
    KINDS,
    NODE,
    PROFILE,
    WEIGHT_BY_KIND,
    Kind,
    harmless,
)
from coda_lab.experiments.hostile.nastiness import (
    NEST,
    Case,
    Hostile,
    Victims,
    Way,
    at_the_limit,
    by_schema,
    deep,
    extreme_numbers,
    forged,
    huge,
    huge_maps,
    many_terms,
    nest,
    odd_quantities,
    orphaned,
    outside_the_planner,
    reset_managers,
    restless,
    weird_text,
)
from coda_lab.experiments.hostile.schema import Schemas, drawn_edits

_BESIDE_QUOTAS_SHARE: Final = 0.1
_OF_ALL: Final[tuple[Way, ...]] = (
    by_schema, by_schema, by_schema, huge, odd_quantities, huge_maps, forged, reset_managers, orphaned, weird_text,
    restless,
)  # fmt: skip
_OF_PODS: Final[tuple[Way, ...]] = (
    odd_quantities, at_the_limit, deep, many_terms, forged, forged, extreme_numbers, outside_the_planner,
)  # fmt: skip
_OF_NODES: Final[tuple[Way, ...]] = (by_schema, odd_quantities, huge_maps, forged, weird_text)
_MOST_REPLICAS: Final = 100_000
_RARE: Final[Mapping[Way, float]] = {huge: 0.2, at_the_limit: 0.25}  # a hundred of them fill etcd


def hostile_objects(
    seed: int, schemas: Schemas, victims: Victims, *, count: int, ways: frozenset[str] = frozenset()
) -> Iterator[Hostile]:
    """The endless objects of a seed. `count`: about how many will be taken. `victims` is read as they are made.

    `ways`: only these classes; empty for all."""
    rng = random.Random(f"hostile {seed}")
    edits = {
        kind.name: _endless(drawn_edits(schemas, kind, count=max(12, count // 30), number=seed * 100 + number))
        for number, kind in enumerate(KINDS)
    }
    for number, (kind, namespace) in enumerate(_kinds(rng), 1):
        name = f"h{number}"
        body = harmless(kind, name, namespace)
        case = Case(rng=rng, kind=kind, body=body, victims=victims, edits=edits[kind.name])
        way = _way(rng, kind)
        if ways and way.__name__ not in ways:
            continue
        deeds = way(case)
        _spare_its_controller(kind, body)
        text = json.dumps(body).encode().replace(json.dumps(NEST).encode(), nest(rng))
        yield Hostile(kind=kind, way=way.__name__, namespace=namespace, name=name, body=text, deeds=deeds)


def _spare_its_controller(kind: Kind, body: Any) -> None:
    """Kubernetes 1.36 makes a list of all `replicas` of a StatefulSet at once: 2^31 - 1 of them take 16 GiB."""
    spec = body.get("spec")
    if kind.name == "StatefulSet" and isinstance(spec, dict) and isinstance(spec.get("replicas"), int):
        spec["replicas"] = min(spec["replicas"], _MOST_REPLICAS)


def harmless_objects(seed: int) -> Iterator[Hostile]:
    """As many objects of the same kinds, all harmless."""
    for number, (kind, namespace) in enumerate(_kinds(random.Random(f"harmless {seed}")), 1):
        name = f"p{number}"
        body = json.dumps(harmless(kind, name, namespace)).encode()
        yield Hostile(kind=kind, way="harmless", namespace=namespace, name=name, body=body)


def _kinds(rng: random.Random) -> Iterator[tuple[Kind, str]]:
    """Endless kinds, each with the namespace of its object."""
    weights = [WEIGHT_BY_KIND.get(kind.name, 2) for kind in KINDS]
    while True:
        kind = rng.choices(KINDS, weights)[0]
        is_beside_quotas = rng.random() < _BESIDE_QUOTAS_SHARE and kind.pod_spec is not None
        yield kind, HOSTILE_NAMESPACE if kind.is_users and not is_beside_quotas else ACCIDENT_NAMESPACE


def _way(rng: random.Random, kind: Kind) -> Way:
    while True:
        if kind in (NODE, PROFILE):
            return rng.choice(_OF_NODES)
        way = rng.choice(_OF_ALL if kind.pod_spec is None else _OF_ALL + _OF_PODS)
        if rng.random() < _RARE.get(way, 1.0):
            return way


WAYS: Final = frozenset(way.__name__ for way in (*_OF_ALL, *_OF_PODS, *_OF_NODES))
"""The names of all classes."""


def _endless(found: list[Any]) -> Iterator[Any]:
    while True:
        yield from found
