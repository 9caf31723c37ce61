"""The hostile objects: the same for the same seed, of every class and kind, and what is drawn follows the schema."""

from __future__ import annotations

import json
from functools import cache
from itertools import islice
from typing import Any

import pytest

from coda_lab.experiments.hostile.generator import WAYS, harmless_objects, hostile_objects
from coda_lab.experiments.hostile.kinds import KINDS, Kind, harmless
from coda_lab.experiments.hostile.nastiness import Hostile, Victims
from coda_lab.experiments.hostile.schema import Schemas, apply_edit, drawn_edits, roots

MANY = 300
POD_SPEC = {
    "type": "object",
    "properties": {
        "hostNetwork": {"type": "boolean"},
        "priority": {"type": "integer", "format": "int32"},
        "overhead": {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/resource.Quantity"}},
        "containers": {"type": "array", "items": {"type": "object", "properties": {"image": {"type": "string"}}}},
    },
}


def document(kinds: list[Kind]) -> dict[str, Any]:
    schemas: dict[str, Any] = {"resource.Quantity": {}, "io.k8s.api.core.v1.PodSpec": POD_SPEC}
    for kind in kinds:
        group, _, version = kind.api_version.rpartition("/")
        spec = {"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}]}
        schemas[kind.name] = {
            "type": "object",
            "properties": {"kind": {"type": "string"}, "spec": spec},
            "x-kubernetes-group-version-kind": [{"group": group, "kind": kind.name, "version": version}],
        }
    return {"components": {"schemas": schemas}}


SCHEMAS = Schemas({root: document([kind for kind in KINDS if kind.root == root]) for root in roots()})


@cache
def objects(seed: int, count: int = MANY) -> list[Hostile]:
    victims = Victims(uid_by_job={"honest-0": "uid-0"}, nodes=("node-0000", "node-0001"))
    return list(islice(hostile_objects(seed, SCHEMAS, victims, count=count), count))


def test_the_same_seed_makes_the_same_objects_and_another_seed_others() -> None:
    assert objects(3, 60) == objects.__wrapped__(3, 60)
    assert [each.body for each in objects(3, 60)] != [each.body for each in objects(4, 60)]


def test_every_class_and_every_kind_comes() -> None:
    found = objects(7)
    assert {each.way for each in found} == WAYS
    assert {each.kind.name for each in found} == {kind.name for kind in KINDS}
    assert len({each.kind.name for each in found if each.kind.is_users}) >= 12


def test_only_the_asked_classes_come() -> None:
    found = hostile_objects(7, SCHEMAS, Victims(), count=50, ways=frozenset({"deep", "forged"}))
    assert {each.way for each in islice(found, 50)} == {"deep", "forged"}


def test_every_object_but_the_deep_ones_is_json_of_its_kind_and_name() -> None:
    for each in objects(7):
        if each.way != "deep":
            body = json.loads(each.body)
            assert (body["kind"], body["metadata"]["name"]) == (each.kind.name, each.name)


def test_hostile_pods_that_pass_the_honest_taint_ask_for_nothing() -> None:
    for each in objects(7):
        if each.kind.name == "Pod" and b'"tolerations"' in each.body and each.way == "forged":
            assert "resources" not in json.loads(each.body)["spec"]["containers"][0]


def test_harmless_objects_are_harmless_and_of_the_same_kinds() -> None:
    found = list(islice(harmless_objects(7), MANY))
    assert {each.kind.name for each in found} == {kind.name for kind in KINDS}
    for each in found:
        assert json.loads(each.body) == harmless(each.kind, each.name, each.namespace)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_drawn_edits_follow_the_schema_and_never_rename_the_object(kind: Kind) -> None:
    found = drawn_edits(SCHEMAS, kind, count=40, number=1)
    assert len(found) == 40
    paths = {path for edits in found for path, _ in edits}
    assert paths <= {
        ("spec",),
        *(("spec", name) for name in POD_SPEC["properties"]),
        ("spec", "containers", 0),
        ("spec", "containers", 0, "image"),
    }
    assert len(paths) > 3


def test_an_edit_makes_what_is_missing_on_its_way() -> None:
    body: dict[str, Any] = {"spec": {"a": "text"}}
    apply_edit(body, ("spec", "a", 0, "b"), 1)
    apply_edit(body, ("spec", "list", 0), 2)
    apply_edit(body, ("spec", "list", 0), 3)
    assert body == {"spec": {"a": [{"b": 1}], "list": [3]}}


def test_no_stateful_set_takes_all_memory_of_kubernetes_own_controller() -> None:
    """The run would measure that, and the machine would end."""
    replicas = {"type": "object", "properties": {"replicas": {"type": "integer", "format": "int32"}}}
    documents = {root: document([kind for kind in KINDS if kind.root == root]) for root in roots()}
    for each in documents.values():
        if "StatefulSet" in each["components"]["schemas"]:
            each["components"]["schemas"]["StatefulSet"]["properties"] = {"spec": replicas}
    made = hostile_objects(
        7, Schemas(documents), Victims(uid_by_job={}, nodes=()), count=60, ways=frozenset({"by_schema"})
    )
    sets = [json.loads(each.body) for each in islice(made, MANY) if each.kind.name == "StatefulSet"]
    numbers = [spec["replicas"] for body in sets if isinstance(spec := body["spec"], dict) and "replicas" in spec]
    assert max(number for number in numbers if isinstance(number, int)) == 100_000
