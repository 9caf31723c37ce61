"""The chart beside the real cert-manager, and beside the definitions of the real operator of Prometheus.

cert-manager is built first, from its Go module, into the user's cache. So only `make verify` runs this.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from cryptography import x509

from coda_cli.doctor.finding import Level
from coda_cli.doctor.parts import certificates
from coda_cli.doctor.seen import look
from coda_kube.api.client import Client
from coda_lab.host.paths import chart
from coda_lab.programs.neighbours import CERT_MANAGER, PROMETHEUS_OPERATOR
from coda_lab.spec import ClusterSpec
from tests.deploy.charts import NAMESPACE, Helm, Json, find
from tests.deploy.installed import TWO_OPERATORS, Installed, ready_for_the_chart
from tests.deploy.neighbours import cert_manager_runs, define
from tests.e2e.jobs import job_json, submit, wait_for, wait_for_phase
from tests.lengths import LONG

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not LONG, reason="builds a program of others: CODA_LONG=1"),
]

SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
CERTIFICATES = f"/apis/cert-manager.io/v1/namespaces/{NAMESPACE}/certificates"
VALUES = ("metrics.podMonitor.enabled=true", "metrics.prometheusRule.enabled=true", *TWO_OPERATORS)
WITHIN_S = 300.0


@pytest_asyncio.fixture(loop_scope="module")
async def installed(helm: Helm) -> AsyncIterator[Installed]:
    async with ready_for_the_chart(ClusterSpec(nodes="4x8x48", racks=2, coda=False), helm) as made:
        yield made


async def test_a_certificate_of_cert_manager_is_what_both_sides_use(installed: Installed) -> None:
    admin = installed.admin
    await define(admin, CERT_MANAGER)
    async with cert_manager_runs(installed.cluster), installed.cluster.client("user") as user:
        await installed.install("certificates.issuer=certManager", *TWO_OPERATORS)
        before = await pair_of(admin, "coda-extender-tls")
        note = "cert-manager.io/certificate-name"
        secret = await admin.get(f"{SECRETS}/coda-scheduler-tls")
        assert secret["metadata"]["annotations"][note] == "coda-scheduler-tls"
        seen = await look(admin)
        assert seen.by_cert_manager
        (found,) = certificates(seen)
        assert (found.level, found.says.split(",")[0]) == (Level.GOOD, "3")
        job = await submit(user, job_json("signed", replicas=2, gpus=8, run_s=0.2))
        await wait_for_phase(user, job, "Succeeded")
        assert installed.complaints() == []
        await renew(admin, "coda-extender-tls")
        after = await changed(lambda: pair_of(admin, "coda-extender-tls"), before)
        assert after["ca.crt"] == before["ca.crt"]
        assert await pair_of(admin, "coda-extender-tls") == after  # the operator leaves it alone
        await renew_authority_and_extender(admin)


async def renew_authority_and_extender(admin: Client) -> None:
    """Its authority keeps its key: kube-scheduler, which knows the old certificate of it, believes the extender."""
    known, served = await pair_of(admin, "coda-scheduler-tls"), await pair_of(admin, "coda-extender-tls")
    authority = await pair_of(admin, "coda-authority")
    await renew(admin, "coda-authority")
    await changed(lambda: pair_of(admin, "coda-authority"), authority)
    await renew(admin, "coda-extender-tls")
    anew = await changed(lambda: pair_of(admin, "coda-extender-tls"), served)
    assert anew["ca.crt"] != known["ca.crt"]
    certificate_in(anew["tls.crt"]).verify_directly_issued_by(certificate_in(known["ca.crt"]))


def certificate_in(encoded: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(encoded))


async def pair_of(admin: Client, name: str) -> dict[str, str]:
    data: dict[str, str] = (await admin.get(f"{SECRETS}/{name}"))["data"]
    return data


async def renew(admin: Client, name: str) -> None:
    """As `cmctl renew` does it."""
    path = f"{CERTIFICATES}/{name}"

    def is_ready(item: Json) -> bool:
        conditions = (item.get("status") or {}).get("conditions") or ()
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    found = await wait_for(admin, path, is_ready, within_s=WITHIN_S)
    asked = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by a test"}
    await admin.patch(f"{path}/status", {"status": {"conditions": [*found["status"]["conditions"], asked]}})


async def changed(look: Callable[[], Any], before: object) -> Any:
    async with asyncio.timeout(WITHIN_S):
        while (found := await look()) == before:
            await asyncio.sleep(0.2)
    return found


async def test_the_definitions_of_the_prometheus_operator_take_what_the_chart_makes(installed: Installed) -> None:
    """The API server checks each field by them, and keeps all that it checked."""
    admin = installed.admin
    await define(admin, PROMETHEUS_OPERATOR)
    await installed.run_helm("install", "coda", "--no-hooks", *words_for_helm())
    rendered = installed.helm.render(*VALUES)
    for kind, plural in (("PodMonitor", "podmonitors"), ("PrometheusRule", "prometheusrules")):
        stored = await admin.get(f"/apis/monitoring.coreos.com/v1/namespaces/{NAMESPACE}/{plural}/coda")
        assert keeps(stored["spec"], find(rendered, kind, "coda")["spec"])
    (endpoint,) = find(rendered, "PodMonitor", "coda")["spec"]["podMetricsEndpoints"]
    secret = endpoint["authorization"]["credentials"]
    assert (await admin.get(f"{SECRETS}/{secret['name']}"))["data"][secret["key"]]


def keeps(found: Any, wanted: Any) -> bool:
    """Whether everything that was wanted is there; defaults may come on top."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(key in found and keeps(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(keeps, found, wanted))
    return bool(found == wanted)


def words_for_helm() -> tuple[str, ...]:
    return (str(chart()), *(word for value in VALUES for word in ("--set", value)))
