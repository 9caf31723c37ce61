"""The hook that upgrades definitions: it takes none back to an older one."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from coda.errors import InvalidInput
from coda_kube.objects.json_types import Json
from coda_lab.host.paths import crds
from coda_lab.install import objects_in
from coda_operator.definitions import fields_of, is_older, number_of, read_definitions

NUMBERS = Path(__file__).with_name("definition_numbers.json")
UPDATE = "CODA_UPDATE_DEFINITIONS"


def definition(number: str = "", **properties: Json) -> Json:
    schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    notes = {"annotations": {"coda.scheduler/definition": number}} if number else {}
    return {"metadata": {"name": "x", **notes}, "spec": {"versions": [{"name": "v1", "schema": schema}]}}


def test_every_field_counts_wherever_it_lies() -> None:
    deep = definition(
        a={"items": {"properties": {"b": {}}}}, c={"additionalProperties": {"properties": {"d": {}}}}, e={"items": True}
    )
    assert fields_of(deep) == {"v1", "v1.a", "v1.a[]", "v1.a[].b", "v1.c", "v1.c[]", "v1.c[].d", "v1.e"}


@pytest.mark.parametrize(
    ("ours", "found", "expected"),
    [
        pytest.param(definition(a={}), definition(a={}), False, id="the same"),
        pytest.param(definition(a={}, b={}), definition(a={}), False, id="ours knows more"),
        pytest.param(definition(a={}), definition(a={}, b={}), True, id="the cluster's knows more"),
        pytest.param(definition(a={}, c={}), definition(a={}, b={}), False, id="each knows one more"),
        pytest.param(definition(a={}), {}, False, id="there is none"),
        pytest.param(definition("1", a={}, c={}), definition("2", a={}, b={}), True, id="a rename later"),
        pytest.param(definition("2", a={}, b={}), definition("1", a={}, c={}), False, id="a rename before"),
        pytest.param(definition("1", a={}), definition("2", a={}), True, id="fewer words of an enum"),
        pytest.param(definition("10", a={}), definition("9", a={}, b={}), False, id="a field dropped on purpose"),
        pytest.param(definition("2", a={}), definition("2", a={}, b={}), True, id="between two numbers"),
        pytest.param(definition(a={}, c={}), definition("1", a={}), True, id="from before all numbers"),
        pytest.param(definition("1", a={}), definition("x", a={}), False, id="somebody else's word"),
    ],
)
def test_an_older_definition_is_recognised(ours: Json, found: Json, expected: bool) -> None:
    assert is_older(ours, found) is expected


@pytest.mark.parametrize("ours", objects_in(crds()), ids=lambda item: item["metadata"]["name"])
def test_of_the_real_ones_a_field_less_is_noticed(ours: Json) -> None:
    older = copy.deepcopy(ours)
    whole = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    whole["status"]["properties"].popitem()
    assert is_older(older, ours)
    assert not is_older(ours, older)


def rules_of(schema: Any) -> Any:
    """A definition without what people read only."""
    if isinstance(schema, list):
        return [rules_of(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: rules_of(part)
        for name, part in schema.items()
        if not (name in ("description", "message") and isinstance(part, str))
    }


def test_a_definition_that_changes_gets_a_higher_number() -> None:
    """By the number an older chart's hook knows that it is older. After a change: raise
    `metadata.annotations["coda.scheduler/definition"]` of its file in crds/, `make chart`, and
    `CODA_UPDATE_DEFINITIONS=1 pytest tests/operator_tests/test_definitions.py`."""
    known = json.loads(NUMBERS.read_text())
    found = {}
    for one in objects_in(crds()):
        name, text = one["metadata"]["name"], json.dumps(rules_of(one["spec"]), sort_keys=True)
        found[name] = {"number": number_of(one), "rules": hashlib.sha256(text.encode()).hexdigest()[:16]}
        before = known.get(name, {"number": 0, "rules": ""})
        changed = found[name]["rules"] != before["rules"]
        assert number_of(one) >= before["number"] + changed, f"raise the number of {name}"
    if os.environ.get(UPDATE) == "1":
        NUMBERS.write_text(json.dumps(found, indent=2) + "\n")
    assert json.loads(NUMBERS.read_text()) == found, f"{UPDATE}=1 pytest {Path(__file__).name}"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="mount the ConfigMap coda-definitions there"):
        read_definitions(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(definition()))
    assert read_definitions(tmp_path) == [definition()]
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_definitions(tmp_path)
