"""Schemathesis asks every program of Coda what `docs/http.yaml` says it answers, and what it says it does not.

Over the sockets that users' clusters have: the verbs over mutual TLS, probes and metrics in plain HTTP. No answer is a
500 or one that the document does not have, nobody's process ends, and memory stays as it was.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import CHECKS
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from coda_lab.experiments.fuzz.run import memory_bytes
from coda_lab.host.ports import LOOPBACK
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import SCHEDULER, ClusterSpec, metrics_port_of
from tests.lengths import LONG

pytestmark = pytest.mark.e2e

AUTHORIZED = {"CODA_METRICS_ACCESS": "authorized"}
PARTS = ("operator-0", "extender-0", "agent-0")
SPEC = ClusterSpec(nodes="4x8x48", extenders=1, agents=1, environ_by_part=dict.fromkeys(PARTS, AUTHORIZED))
DOCUMENT = yaml.safe_load(Path("docs/http.yaml").read_text())
EXAMPLES = 2000 if LONG else 25  # of each operation and mode
SEED = 7
GROWTH_LIMIT_BYTES = 24 * 1024 * 1024
OTHER_METHODS = ("GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")
CHECKED = ["status_code_conformance", "content_type_conformance", "response_schema_conformance"]
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)  # the checks are known from here on


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """A port of a program: the operations with this tag in the document."""

    part: str
    tag: str
    url: str
    session: requests.Session


def surfaces(cluster: LocalCluster) -> Iterator[Surface]:
    verbs = requests.Session()
    verbs.trust_env = False  # else a variable for another authority wins over `verify`
    folder = cluster.layout.tls(SCHEDULER)
    verbs.cert, verbs.verify = (str(folder / "tls.crt"), str(folder / "tls.key")), str(folder / "ca.crt")
    port = cluster.ports["extender-0"]
    yield Surface(part="extender-0", tag="verbs", url=f"https://{LOOPBACK}:{port}", session=verbs)
    reader = requests.Session()
    reader.headers["Authorization"] = f"Bearer {token_of_a_reader(cluster)}"
    for part in PARTS:
        port = cluster.ports.get(metrics_port_of(part), cluster.ports[part])
        for session in (requests.Session(), reader):
            yield Surface(part=part, tag="status", url=f"http://{LOOPBACK}:{port}", session=session)


def token_of_a_reader(cluster: LocalCluster) -> str:
    """Of an account that may `get /metrics`; and the parts may ask who it is, as in the chart."""
    parts = " ".join(f"--serviceaccount=coda-system:coda-{part}" for part in ("operator", "extender", "agent"))
    for words in (
        f"create clusterrolebinding reviews-metrics --clusterrole=system:auth-delegator {parts}",
        "create clusterrole reads-metrics --verb=get --non-resource-url=/metrics",
        "create clusterrolebinding reads-metrics --clusterrole=reads-metrics --serviceaccount=default:default",
    ):
        subprocess.run([*cluster.kubectl, *words.split()], check=False, capture_output=True)  # made by an earlier test
    words = "create token default --namespace=default"
    return subprocess.run(
        [*cluster.kubectl, *words.split()], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


def ask(surface: Surface, mode: GenerationMode, examples: int) -> Counter[int]:
    """The statuses of the answers to `examples` requests of each operation, which the document has all."""
    statuses, checks = Counter[int](), CHECKS.get_by_names(CHECKED)
    for found in SCHEMA.include(tag=surface.tag).get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()

        @seed(SEED)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def each(case: Any) -> None:
            response = case.call(
                base_url=surface.url, session=surface.session, timeout=10, verify=surface.session.verify
            )
            statuses[response.status_code] += 1
            case.validate_response(response, checks=checks)

        try:
            each()
        except Unsatisfiable:
            assert operation.method == "get", "an operation with a body can be asked wrongly"  # a GET cannot
    return statuses


def test_every_answer_is_one_that_the_document_has(cluster: LocalCluster) -> None:
    for surface in surfaces(cluster):
        pid = _pid(cluster, surface.part)
        for mode in GenerationMode:  # what stays for later, such as a pool of connections, is there afterwards
            ask(surface, mode, examples=max(5, EXAMPLES // 10))
        before = memory_bytes(pid, "VmRSS")
        said = {mode.value: ask(surface, mode, EXAMPLES) for mode in GenerationMode}
        grown = memory_bytes(pid, "VmRSS") - before
        print(f"{surface.part} {surface.tag}: {said}, memory {grown / 2**20:+.1f} MiB")  # noqa: T201 - the figures
        assert sum(said["positive"].values()) >= EXAMPLES, "schemathesis made hardly anything"
        if surface.tag == "status":
            is_reader = "Authorization" in surface.session.headers
            assert said["positive"].keys() == ({200} if is_reader else {200, 401}), "metrics are for readers alone"
        assert grown < GROWTH_LIMIT_BYTES, f"{surface.part} grew by {grown} bytes"
        assert _pid(cluster, surface.part) == pid
        assert "Traceback" not in cluster.log_path(surface.part).read_text(errors="replace")


def test_other_methods_and_paths_are_refused(cluster: LocalCluster) -> None:
    for surface in surfaces(cluster):
        for path, item in DOCUMENT["paths"].items():
            here = any(surface.tag in operation["tags"] for operation in item.values())
            for method in OTHER_METHODS:
                if here and method.lower() in item:
                    continue
                status = surface.session.request(method, surface.url + path, data=b"{}", timeout=10).status_code
                assert status == (405 if here else 404), f"{surface.part} {method} {path}"
        for path in ("/", "/bind", "/openapi.json", "/docs", "/debug/pprof", "/%2e%2e/etc/passwd"):
            assert surface.session.get(surface.url + path, timeout=10).status_code in (401, 404), path


def _pid(cluster: LocalCluster, part: str) -> int:
    process = cluster.process(part)
    assert process is not None
    assert process.exit_code is None, f"{part} ended"
    return process.id.pid
