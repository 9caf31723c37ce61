"""A real kube-scheduler and the extender show each other certificates that are not good.

They are over, not valid yet, of another authority, of another name, or meant for the other side. Neither side believes
the other, neither ends, and both go on once good files are there.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coda_kube.api.client import Client
from coda_kube.certificates import DAY_S, KeyPair, files_of, new_authority, new_leaf
from coda_lab.host.ports import LOOPBACK
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import EXTENDER, SCHEDULER, ClusterSpec, metrics_port_of
from tests.e2e.jobs import wait_for, wait_gone
from tests.lengths import LONG

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="2x8x48", racks=1, extenders=1, operators=0)
PODS = "/api/v1/namespaces/default/pods"
REFUSED = re.compile(r'coda_extender_refused_requests_total\{reason="no_certificate"\} ([0-9.e+]+)')

Make = Callable[[KeyPair, float], KeyPair]
"""A pair for one side, by the right authority and the time now."""


def leaf(serves: bool, *, days: float = 0.0) -> Make:
    return lambda authority, now_s: new_leaf(authority, serves=serves, now_s=now_s + days * DAY_S)


def of_another_authority(serves: bool) -> Make:
    return lambda _authority, now_s: new_leaf(new_authority(now_s), serves=serves, now_s=now_s)


def of_another_name(authority: KeyPair, now_s: float) -> KeyPair:
    """As the extender's, but for another Service."""
    own = x509.load_pem_x509_certificate(new_leaf(authority, serves=True, now_s=now_s).certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    issuer_key = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    builder = x509.CertificateBuilder(
        issuer_name=own.issuer,
        subject_name=own.subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=own.not_valid_before_utc,
        not_valid_after=own.not_valid_after_utc,
    )
    for extension in own.extensions:
        if not isinstance(extension.value, x509.SubjectAlternativeName):
            builder = builder.add_extension(extension.value, critical=extension.critical)
    names = x509.SubjectAlternativeName([x509.DNSName("elsewhere.coda-system.svc")])
    pem = builder.add_extension(names, critical=False).sign(issuer_key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(pem.public_bytes(serialization.Encoding.PEM), secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one side shows, and what kube-scheduler logs of it; empty: the extender counts it."""

    side: str
    make: Make
    says: str = ""


CASES = {
    "the extender's of another authority": Case(
        side=EXTENDER, make=of_another_authority(True), says="certificate signed by unknown authority"
    ),
    "the scheduler's over": Case(side=SCHEDULER, make=leaf(False, days=-400)),
    "the extender's over": Case(side=EXTENDER, make=leaf(True, days=-400), says="certificate has expired"),
    "the extender's not valid yet": Case(side=EXTENDER, make=leaf(True, days=40), says="is not yet valid"),
    "the extender's of another name": Case(
        side=EXTENDER, make=of_another_name, says="certificate is valid for elsewhere"
    ),
    "the extender shows the scheduler's": Case(side=EXTENDER, make=leaf(False), says="is not valid for any names"),
    "the scheduler's not valid yet": Case(side=SCHEDULER, make=leaf(False, days=40)),
    "the scheduler's of another authority": Case(side=SCHEDULER, make=of_another_authority(False)),
    "the scheduler shows the extender's": Case(side=SCHEDULER, make=leaf(True)),
}
SHORT = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def authority(cluster: LocalCluster) -> KeyPair:
    """One whose key we have; kube-scheduler reads the authority at its start."""
    made = new_authority(time.time())
    for side in (EXTENDER, SCHEDULER):
        write(cluster.layout.tls(side), new_leaf(made, serves=side == EXTENDER, now_s=time.time()), made)
    await cluster.restart("extender-0")
    await cluster.restart(SCHEDULER)
    return made


def write(folder: Path, pair: KeyPair, authority: KeyPair) -> None:
    """As a kubelet brings a renewed Secret: each file whole."""
    for name, content in files_of(pair, authority).items():
        fresh = folder / f"{name}.new"
        fresh.write_bytes(content)
        fresh.rename(folder / name)


@pytest.mark.parametrize("name", list(CASES)[: None if LONG else SHORT])
async def test_who_shows_a_wrong_certificate_is_not_believed(
    cluster: LocalCluster, admin: Client, authority: KeyPair, name: str
) -> None:
    case = CASES[name]
    folder, log = cluster.layout.tls(case.side), cluster.log_path(SCHEDULER)
    write(folder, case.make(authority, time.time()), authority)
    await cluster.restart("extender-0")  # every connection begins anew
    said_before, refused_before = log.stat().st_size, await refused(cluster)
    path = await made_pod(admin, name.replace(" ", "-").replace("'", ""))
    async with asyncio.timeout(30):
        while not (
            case.says in log.read_text(errors="replace")[said_before:]
            if case.says
            else await refused(cluster) > refused_before
        ):
            await asyncio.sleep(0.1)  # a log and a metric tell nobody
    assert "nodeName" not in (await admin.get(path))["spec"]
    write(folder, new_leaf(authority, serves=case.side == EXTENDER, now_s=time.time()), authority)
    await wait_for(admin, path, lambda pod: bool(pod["spec"].get("nodeName")), within_s=30)
    await admin.delete(path, grace_s=0)
    await wait_gone(admin, path)
    assert "Traceback" not in cluster.log_path("extender-0").read_text(errors="replace")


async def made_pod(admin: Client, name: str) -> str:
    """A pod that kube-scheduler asks the extender about."""
    spec = {"schedulerName": "coda", "containers": [{"name": "main", "image": "any:1"}]}
    await admin.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    return f"{PODS}/{name}"


async def refused(cluster: LocalCluster) -> float:
    """Connections that the extender ended because of their certificate."""
    url = f"http://{LOOPBACK}:{cluster.ports[metrics_port_of('extender-0')]}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        match = REFUSED.search(await response.text())
    return float(match[1]) if match else 0.0
