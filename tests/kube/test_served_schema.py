"""An older CustomResourceDefinition is noticed: the API server would cut off new fields in silence."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from coda.errors import Outage
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.served_schema import CHECK_EVERY_S, WRITTEN, ServedSchema, missing_fields
from coda_lab.host.paths import crds
from tests.virtual_time import VirtualLoop


def manifest(plural: str) -> dict[str, Any]:
    loaded = yaml.load((crds() / f"{plural}.yaml").read_text(), yaml.CSafeLoader)
    schema: dict[str, Any] = loaded["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema | {"x-kubernetes-group-version-kind": [{"kind": loaded["spec"]["names"]["kind"]}]}


DOCUMENT = {"components": {"schemas": {"a": manifest("trainingjobs"), "b": manifest("nodeprofiles"), "c": {}}}}


def paths(schema: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        if field.get("properties"):
            yield from paths(field, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}"


def without_stop() -> Json:
    older = copy.deepcopy(DOCUMENT)
    status = older["components"]["schemas"]["a"]["properties"]["status"]["properties"]
    del status["placement"]["properties"]["stop"]
    return older


def test_the_fields_are_those_of_the_manifests() -> None:
    for plural, kind in (("trainingjobs", "TrainingJob"), ("nodeprofiles", "NodeProfile")):
        assert sorted(WRITTEN[kind]) == sorted(paths(manifest(plural)["properties"]["status"], "status"))


def test_a_field_that_an_older_definition_lacks_is_named() -> None:
    assert list(missing_fields(DOCUMENT)) == []
    lacking = [f"status.placement.stop.{name}" for name in ("by", "cause", "noticeSeconds", "time")]
    assert sorted(missing_fields(without_stop())) == lacking


class Serving(Client):
    """Serves this document, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        if isinstance(self.answer, Exception):
            raise self.answer
        return dict(self.answer)


def test_nobody_leads_with_an_older_definition_and_a_leader_stops() -> None:
    async def story() -> None:
        client = Serving(without_stop())
        schema = ServedSchema(client)
        waiting = asyncio.create_task(schema.wait_until_complete())
        await asyncio.sleep(30)
        assert not waiting.done()
        assert "status.placement.stop" in schema.sentence
        client.answer = DOCUMENT
        await asyncio.wait_for(waiting, 10)
        assert schema.is_complete
        leading = asyncio.create_task(schema.wait_until_incomplete())
        await asyncio.sleep(10 * CHECK_EVERY_S)
        for unknown in (Outage("away"), {}, {"components": {"schemas": {"a": None}}}):
            client.answer = unknown
            await asyncio.sleep(2 * CHECK_EVERY_S)
            assert not leading.done(), "what cannot be read says nothing"
        client.answer = without_stop()
        await asyncio.wait_for(leading, 2 * CHECK_EVERY_S)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
