"""The hook that upgrades definitions: it adds fields, and never takes any away."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from coda.errors import InvalidInput
from coda_kube.objects.json_types import Json
from coda_lab.host.paths import crds
from coda_lab.install import objects_in
from coda_operator.definitions import fields_of, is_older, read_definitions


def definition(**properties: Json) -> Json:
    schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    return {"metadata": {"name": "x"}, "spec": {"versions": [{"name": "v1", "schema": schema}]}}


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


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="mount the ConfigMap coda-definitions there"):
        read_definitions(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(definition()))
    assert read_definitions(tmp_path) == [definition()]
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_definitions(tmp_path)
