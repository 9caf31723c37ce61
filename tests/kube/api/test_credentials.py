"""Which ways to the API server are read here, and which are left to the `kubernetes` package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from coda.errors import InvalidInput
from coda_kube.api import credentials
from coda_kube.api.credentials import Access, find_access, plain_access

SERVER = "https://10.0.0.1:6443"


def write(folder: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "other", "cluster": {}}, {"name": "c", "cluster": {"server": SERVER, **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
        "current-context": "here",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_files_are_named_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    found = plain_access(
        write(
            tmp_path,
            cluster={"certificate-authority": "ca.pem", "proxy-url": "http://proxy:8080"},
            user={"client-certificate": "/etc/me.pem", "client-key": "me.key"},
        )
    )
    assert found == Access(
        host=SERVER,
        ssl_ca_cert=str(tmp_path / "ca.pem"),
        proxy="http://proxy:8080",
        cert_file="/etc/me.pem",
        key_file=str(tmp_path / "me.key"),
    )


async def test_a_token_is_shown_as_bearer_and_without_one_nothing_is(tmp_path: Path) -> None:
    for user, shown in (({"token": "abc"}, "Bearer abc"), (None, None)):
        found = plain_access(write(tmp_path, user=user))
        assert found is not None
        assert await found.get_api_key_with_prefix("BearerToken") == shown


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        pytest.param({}, {"exec": {"command": "aws"}}, id="a program gives the token"),
        pytest.param({}, {"client-certificate-data": "aGk=", "client-key-data": "aGk="}, id="certificates within it"),
        pytest.param({"certificate-authority-data": "aGk="}, {"token": "abc"}, id="authority within it"),
        pytest.param({"tls-server-name": "api"}, {"token": "abc"}, id="another name in the certificate"),
    ],
)
def test_other_ways_are_left_to_the_package(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> None:
    assert plain_access(write(tmp_path, cluster=cluster, user=user)) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "current-context: here", "current-context: a\ncontexts: [{name: a, context: 5}]", "\0"]
)
async def test_what_is_no_kubeconfig_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"^no cluster to talk to: "):
        await find_access(str(path))


async def test_a_pod_has_its_service_account_whose_token_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    with pytest.raises(InvalidInput, match="has no service account"):
        await find_access(None)
    (tmp_path / "ca.crt").write_text("-")
    (tmp_path / "token").write_text("first\n")
    found = await find_access(None)
    assert (found.host, found.ssl_ca_cert) == ("https://[fd00::1]:443", str(tmp_path / "ca.crt"))
    assert await found.get_api_key_with_prefix("BearerToken") == "Bearer first"
    (tmp_path / "token").write_text("second\n")
    assert await found.get_api_key_with_prefix("BearerToken") == "Bearer first"
    monkeypatch.setattr(credentials, "TOKEN_S", 0.0)
    assert await found.get_api_key_with_prefix("BearerToken") == "Bearer second"


def test_the_agent_does_not_import_the_package() -> None:
    listing = (
        "import coda_agent.__main__, sys; print(sorted({'kubernetes', 'requests', 'oauthlib'} & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
