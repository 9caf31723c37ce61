"""The client: which way it takes to the server, and what it makes of its refusals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coda_kube.api import credentials
from coda_kube.api.client import NotFound, NotServed, Rejected, TooBusy, connect, error_from_answer


@pytest.fixture
async def listener() -> AsyncIterator[str]:
    """The address of one who answers every request with the host it was for: a server to some, a proxy to others."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"for": request.host})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application, host="127.0.0.1") as server:
        yield f"127.0.0.1:{server.port}"


FAR = "cluster.invalid"  # no name server knows it


@pytest.mark.parametrize(
    ("proxies", "in_kubeconfig"),
    [
        pytest.param(("http_proxy",), False, id="the environment's"),
        pytest.param((), True, id="the kubeconfig's"),
    ],
)
async def test_a_server_is_reached_through_the_proxy_named_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str, proxies: tuple[str, ...], in_kubeconfig: bool
) -> None:
    proxy = f"http://{listener}"
    _only_these_proxies(monkeypatch, dict.fromkeys(proxies, proxy))
    client = await connect(_kubeconfig(tmp_path, FAR, proxy if in_kubeconfig else None))
    assert await client.get("/api/v1/nodes") == {"for": FAR}
    assert (await client.connection())["proxy_url"] == proxy
    await client.close()


@pytest.mark.parametrize("excepted", ["127.0.0.1", "other.example,127.0.0.1", "*"])
async def test_a_server_excepted_from_the_proxy_is_reached_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str, excepted: str
) -> None:
    _only_these_proxies(monkeypatch, {"http_proxy": "http://127.0.0.1:9", "no_proxy": excepted})
    client = await connect(_kubeconfig(tmp_path, listener))
    assert await client.get("/api/v1/nodes") == {"for": listener}
    assert (await client.connection())["proxy_url"] is None
    await client.close()


DIRECTLY = [
    ("10.96.0.1", "10.96.0.0/12"),
    ("10.96.0.1", "10.97.3.4/12"),
    ("192.0.2.7:6443", ".svc, 192.0.2.0/24"),
    ("[2001:db8::1]:6443", "2001:DB8::/48"),
    ("[2001:db8::1]", "[2001:db8::1]:80"),
    ("[2001:db8:0:0::1]", "2001:db8::1"),
    ("192.0.2.7:6443", "192.0.2.7:6443"),
    ("api.example:6443", "API.example:6443"),
    ("api.example", "api.example:80"),
    ("a.api.example", "api.example"),
    ("a.api.example", ".api.example"),
    ("a.api.example", "*.api.example"),
    ("192.0.2.7", "other.example,*"),
    ("localhost:6443", ""),
    ("127.0.0.2", ""),
    ("[::1]:6443", ""),
]
BY_PROXY = [
    ("10.112.0.1", "10.96.0.0/12"),
    ("[2001:db8:1::1]", "2001:db8::/48"),
    ("10.96.0.1", "::/0"),
    ("192.0.2.7:6443", "192.0.2.7:443"),
    ("api.example", "api.example:6443"),
    ("api.example", ".api.example,*.api.example"),
    ("myapi.example", "api.example"),
    ("192.0.2.7", "2.7,.7,:80, ,,[,x/8"),
    ("example", "10.0.0.0/8"),
]


@pytest.mark.parametrize(
    ("server", "excepted", "proxy"),
    [
        *[(server, excepted, None) for server, excepted in DIRECTLY],
        *[(server, excepted, "http://proxy.example:3128") for server, excepted in BY_PROXY],
    ],
)
async def test_exceptions_from_the_proxy_mean_what_they_mean_to_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, excepted: str, proxy: str | None
) -> None:
    _only_these_proxies(monkeypatch, {"HTTP_PROXY": "http://proxy.example:3128", "NO_PROXY": excepted})
    client = await connect(_kubeconfig(tmp_path, server))
    assert (await client.connection())["proxy_url"] == proxy
    await client.close()


async def test_a_proxy_may_be_named_without_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only_these_proxies(monkeypatch, {"http_proxy": "", "HTTP_PROXY": "proxy.example:3128"})
    client = await connect(_kubeconfig(tmp_path, FAR))
    assert (await client.connection())["proxy_url"] == "http://proxy.example:3128"
    await client.close()


@pytest.mark.parametrize(
    ("proxies", "excepted", "proxy"),
    [
        (("http://big:1", "http://small:1"), ("", ""), "http://big:1"),
        (("", "http://small:1"), ("", ""), "http://small:1"),
        (("http://big:1", ""), ("10.0.0.0/8", "localhost"), None),
        (("http://big:1", ""), ("localhost", "10.0.0.0/8"), "http://big:1"),
        (("http://big:1", ""), ("", "10.0.0.0/8"), None),
    ],
)
async def test_a_variable_in_capitals_wins_as_in_go(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    proxies: tuple[str, str],
    excepted: tuple[str, str],
    proxy: str | None,
) -> None:
    """Both may be set, one by the image and one by the cluster's administrator: kubectl took the other one."""
    values = dict(zip(("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"), (*proxies, *excepted), strict=True))
    _only_these_proxies(monkeypatch, values)
    client = await connect(_kubeconfig(tmp_path, "10.96.0.1"))
    assert (await client.connection())["proxy_url"] == proxy
    await client.close()


@pytest.mark.parametrize(("excepted", "proxy"), [("10.96.0.0/12", None), (".svc", "http://proxy.example:3128")])
async def test_a_pod_asks_the_proxy_that_client_go_would_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, excepted: str, proxy: str | None
) -> None:
    """It makes no exception for the server of a service account."""
    _only_these_proxies(monkeypatch, {"HTTPS_PROXY": "http://proxy.example:3128", "NO_PROXY": excepted})
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    for name in ("ca.crt", "token"):
        (tmp_path / name).write_text("-")
    client = await connect()
    assert (client.server, (await client.connection())["proxy_url"]) == ("https://10.96.0.1:443", proxy)
    await client.close()


def _only_these_proxies(monkeypatch: pytest.MonkeyPatch, proxies: dict[str, str]) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)


def _kubeconfig(folder: Path, host: str, proxy: str | None = None) -> str:
    cluster = {"server": f"http://{host}"} | ({"proxy-url": proxy} if proxy else {})
    content = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "clusters": [{"name": "one", "cluster": cluster}],
        "users": [{"name": "one", "user": {}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(content))  # JSON is YAML
    return str(path)


NO_MORE = "Cannot evict pod as it would violate the pod's disruption budget."
NEEDS_TWO = "The disruption budget java needs 2 healthy pods and has 2 currently"


def test_a_busy_answer_names_its_causes() -> None:
    cause = {"reason": "DisruptionBudget", "message": NEEDS_TWO}
    error = error_from_answer(429, json.dumps({"message": NO_MORE, "details": {"causes": [cause]}}), retry_after_s=3.0)
    assert isinstance(error, TooBusy)
    assert str(error) == f"HTTP 429: {NO_MORE} ({NEEDS_TWO})"
    assert error.causes == frozenset({"DisruptionBudget"})
    assert (error.may_have_worked, error.retry_after_s) == (False, 3.0)


def test_causes_are_not_said_twice_and_not_at_length() -> None:
    causes = [{"reason": "FieldValueRequired", "message": "Required value", "field": "spec.x"}]
    answer = {"message": "pod is invalid: spec.x: Required value", "details": {"causes": causes}}
    assert str(error_from_answer(422, json.dumps(answer))) == "pod is invalid: spec.x: Required value"
    long = {"message": "no", "details": {"causes": [{"message": "y" * 10_000}]}}
    assert len(str(error_from_answer(403, json.dumps(long)))) < 400


@pytest.mark.parametrize(
    "answer",
    [[], "no", {"details": []}, {"details": {"causes": "no"}}, {"details": {"causes": [1, {"message": None}]}}],
)
def test_an_odd_answer_is_an_error_without_causes(answer: Any) -> None:
    error = error_from_answer(429, json.dumps(answer))
    assert isinstance(error, TooBusy)
    assert not error.causes - {""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            '{"kind": "Status", "reason": "NotFound", "message": "pods \\"p\\" not found", '
            '"details": {"name": "p", "kind": "pods"}, "code": 404}',
            NotFound,
            id="the object",
        ),
        pytest.param("404 page not found\n", NotServed, id="a kind without a definition"),
        pytest.param(
            '{"kind": "Status", "reason": "NotFound", "message": "the server could not find the requested resource", '
            '"details": {}, "code": 404}',
            NotServed,
            id="a route that this version lacks",
        ),
        pytest.param("default backend - 404", NotServed, id="a balancer"),
        pytest.param('{"kind": "Status", "reason": "NotFound", "details": []}', NotServed, id="odd details"),
        pytest.param('{"reason": "NotFound", "details": {"name": "p"}}', NotServed, id="no Status"),
        pytest.param("[]", NotServed, id="no object"),
    ],
)
def test_only_a_status_that_names_it_says_that_an_object_does_not_exist(text: str, expected: type[Exception]) -> None:
    error = error_from_answer(404, text)
    assert type(error) is expected
    assert isinstance(error, Rejected) == (expected is NotFound)
