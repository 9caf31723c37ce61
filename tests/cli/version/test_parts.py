"""What `coda version` reads of a cluster, and what it says does not go together."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from coda_cli.version.parts import Part, parts_of, skews, tag_of
from coda_kube.api.client import Rejected
from coda_kube.api.installed_version import installed_version
from coda_kube.objects.json_types import Json
from tests.extender.fake_api import Call, FakeApi


class WithAVersion(FakeApi):
    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        return {"gitVersion": "v1.36.3"} if path == "/version" else await super().get(path, query)


LEASES = "/apis/coordination.k8s.io/v1/namespaces/coda-system/leases"


def versions(**by_name: str) -> list[Part]:
    return [Part(name.replace("_", "-"), version) for name, version in by_name.items()]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        pytest.param(versions(coda="2", operator="2", planner="2", agent="2"), [], id="equal"),
        pytest.param(versions(coda="2", operator="", planner="", agent=""), [], id="not installed"),
        pytest.param(
            versions(coda="2", operator="1", planner="2", agent="1"),
            ["operator is 1 and agent is 1, and this command 2: use the version that the cluster has"],
            id="two older",
        ),
        pytest.param(
            versions(coda="2", operator="unknown", planner="2"),
            ["operator does not say its version, so it is older than this command: upgrade it"],
            id="silent",
        ),
        pytest.param(versions(coda="2", operator="2+a1", planner="2+a1", agent="2-a1"), [], id="one build"),
        pytest.param(versions(coda="2+b2.dirty.c3", agent="2-b2-dirty-c3"), [], id="this build"),
        pytest.param(
            versions(coda="2+b2", operator="2+a1"),
            ["operator is 2+a1, and this command 2+b2: use the version that the cluster has"],
            id="another build than this",
        ),
        pytest.param(
            versions(coda="2", operator="2+b2", planner="2+a1", agent="2-b2"),
            ["operator is 2+b2, planner is 2+a1 and agent is 2-b2: one build has not replaced the other everywhere"],
            id="two builds",
        ),
        pytest.param(versions(coda="2", kube_scheduler="v1.35.1", Kubernetes="v1.36.3"), [], id="one behind"),
        pytest.param(
            versions(coda="2", kube_scheduler="v1.34.0", Kubernetes="v1.36.3-gke.1"),
            ["kube-scheduler is 1.34, the API server 1.36: upgrade Coda after the API servers"],
            id="two behind",
        ),
        pytest.param(
            versions(coda="2", kube_scheduler="v1.37.0", Kubernetes="v1.36.3"),
            ["kube-scheduler is 1.37, the API server 1.36: it may not be newer than the API server"],
            id="ahead",
        ),
        pytest.param(versions(coda="2", kube_scheduler="latest", Kubernetes="v1.36.3"), [], id="no version"),
    ],
)
def test_says_what_does_not_go_together(parts: list[Part], says: list[str]) -> None:
    assert [*skews(parts)] == says


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("images.example.com:5000/coda-agent:1.2", "1.2"),
        ("images.example.com:5000/coda-agent", "unknown"),
        ("coda-agent:1.2@sha256:00ff", "1.2"),
        ("coda-agent@sha256:00ff", "unknown"),
    ],
)
def test_an_images_tag_is_not_its_registrys_port(image: str, tag: str) -> None:
    assert tag_of(image) == tag


async def test_reads_leases_and_images_and_says_what_it_may_not_see() -> None:
    api = WithAVersion()
    lease: Json = {"metadata": {"name": "coda-operator", "annotations": {"coda.scheduler/version": "1.0"}}, "spec": {}}
    await api.create(LEASES, lease)

    def refuse(call: Call) -> None:
        if "coda-planner" in call.path:
            raise Rejected(403, "Forbidden", "no")

    api.before = refuse
    found = {part.name: part for part in await parts_of(api)}
    assert found["coda"].version == installed_version()
    assert found["operator"].version == "1.0"
    assert found["planner"] == Part("planner", "", "you may not look")
    assert found["Kubernetes"].version == "v1.36.3"
    assert found["agent"] == Part("agent", "", "no daemonset coda-agent")
