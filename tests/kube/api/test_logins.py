"""How commands log in where clouds write kubeconfigs: programs whose tokens end, and authorities of the clouds' own."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coda.errors import Outage
from coda_kube.api.client import Client, Rejected, connect

NAME = "api.internal"  # in the server's certificate, which does not have its address
V1 = "client.authentication.k8s.io/v1"


@dataclass(slots=True)
class Server:
    """An API server that knows some tokens, and those that it was shown."""

    url: str = ""
    knows: set[str] = field(default_factory=set)  # empty: everybody
    shown: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.shown.append(token)
        if self.knows and token not in self.knows:
            return web.json_response({"kind": "Status", "reason": "Unauthorized", "message": "no"}, status=401)
        return web.json_response({"got": (await request.read()).decode()})


@asynccontextmanager
async def serving(context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    found = Server()
    application = web.Application()
    application.router.add_route("*", "/version", found.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    found.url = f"http{'s' if context else ''}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield found
    finally:
        await runner.cleanup()


@asynccontextmanager
async def logged_in(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> AsyncIterator[Client]:
    config = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))  # JSON is YAML
    client = await connect(str(path))
    try:
        yield client
    finally:
        await client.close()


def program(folder: Path, ends: datetime | None) -> dict[str, Any]:
    """A program that gives token-1, token-2 and so on, which end then."""
    moment = f', "expirationTimestamp": "{ends:%Y-%m-%dT%H:%M:%SZ}"' if ends else ""
    answer = f'{{"apiVersion": "{V1}", "kind": "ExecCredential", "status": {{"token": "token-%d"{moment}}}}}'
    path = folder / "login"
    path.write_text(f"#!/bin/sh\necho >> {folder}/runs\nprintf '{answer}' $(wc -l < {folder}/runs)\n")
    path.chmod(0o755)
    return {"exec": {"apiVersion": V1, "command": "./login"}}


async def test_a_token_that_ends_is_followed_by_another(tmp_path: Path) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=5)
    async with serving() as server, logged_in(tmp_path, {"server": server.url}, program(tmp_path, soon)) as client:
        await client.get("/version")
        await client.get("/version")
        assert server.shown == ["token-2", "token-3"]


async def test_a_token_that_does_not_end_is_kept(tmp_path: Path) -> None:
    later = datetime.now(UTC) + timedelta(minutes=2)
    async with serving() as server, logged_in(tmp_path, {"server": server.url}, program(tmp_path, later)) as client:
        await client.get("/version")
        await client.get("/version")
        assert server.shown == ["token-1", "token-1"]


@pytest.mark.parametrize(
    "ends", [None, datetime(2100, 1, 1, tzinfo=UTC)], ids=["of no known end", "long before its end"]
)
async def test_a_token_that_the_server_does_not_know_any_more_is_followed_by_another(
    tmp_path: Path, ends: datetime | None
) -> None:
    async with serving() as server, logged_in(tmp_path, {"server": server.url}, program(tmp_path, ends)) as client:
        server.knows = {"token-2"}
        assert await client.create("/version", {"a": 1}) == {"got": '{"a":1}'}
        await client.get("/version")
        assert server.shown == ["token-1", "token-2", "token-2"]


async def test_whom_the_server_refuses_in_any_case_hears_so(tmp_path: Path) -> None:
    async with serving() as server, logged_in(tmp_path, {"server": server.url}, program(tmp_path, None)) as client:
        server.knows = {"another"}
        with pytest.raises(Rejected) as refused:
            await client.get("/version")
        assert (refused.value.status, server.shown) == (401, ["token-1", "token-2"])


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    """Of a server whose certificate has the name alone."""
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("kubernetes", NAME)}
    now = datetime.now(UTC)

    def signed(name: str, extension: x509.ExtensionType) -> bytes:
        subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, "kubernetes"))
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).serial_number(1)
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.public_key(keys[name].public_key()).add_extension(extension, critical=False)
        return builder.sign(keys["kubernetes"], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    (tmp_path / "ca.pem").write_bytes(signed("kubernetes", x509.BasicConstraints(ca=True, path_length=None)))
    key = keys[NAME].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    names = x509.SubjectAlternativeName([x509.DNSName(NAME)])
    (tmp_path / "server.pem").write_bytes(signed(NAME, names) + key)
    found = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    found.load_cert_chain(tmp_path / "server.pem")
    return found


@pytest.fixture
def authority(tmp_path: Path, context: ssl.SSLContext) -> dict[str, Any]:
    """A cluster's fields: the authority that signed `context`'s certificate, with as little in it as EKS's."""
    return {"certificate-authority-data": base64.b64encode((tmp_path / "ca.pem").read_bytes()).decode()}


@pytest.mark.parametrize("user", [{"token": "t"}, {"exec": {}}], ids=["a token", "a program"])
async def test_the_servers_certificate_may_have_another_name(
    tmp_path: Path, context: ssl.SSLContext, authority: dict[str, Any], user: dict[str, Any]
) -> None:
    user = program(tmp_path, None) if "exec" in user else user
    async with serving(context) as server:
        cluster = authority | {"server": server.url, "tls-server-name": NAME}
        async with logged_in(tmp_path, cluster, user) as client:
            assert await client.get("/version") == {"got": ""}


async def test_a_certificate_that_does_not_fit_is_what_is_said(
    tmp_path: Path, context: ssl.SSLContext, authority: dict[str, Any]
) -> None:
    async with (
        serving(context) as server,
        logged_in(tmp_path, authority | {"server": server.url}, {"token": "t"}) as client,
    ):
        with pytest.raises(Outage, match=r"certificate is not valid for '127\.0\.0\.1'") as said:
            await client.get("/version")
        assert "JSON" not in str(said.value)


async def test_an_authority_may_lack_what_only_python_asks_for(
    tmp_path: Path, context: ssl.SSLContext, authority: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python asks since 3.13; kubectl never does."""
    default = ssl.create_default_context

    def of_python_3_13(*given: Any, **more: Any) -> ssl.SSLContext:
        made = default(*given, **more)
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    monkeypatch.setattr(ssl, "create_default_context", of_python_3_13)
    async with serving(context) as server:
        cluster = authority | {"server": server.url, "tls-server-name": NAME}
        async with logged_in(tmp_path, cluster, {"token": "t"}) as client:
            assert await client.get("/version") == {"got": ""}
