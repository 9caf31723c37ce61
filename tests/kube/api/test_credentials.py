"""Which ways to the API server are read here, and which are left to the `kubernetes` package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from coda.errors import InvalidInput
from coda_kube.api import credentials
from coda_kube.api.credentials import (
    Access,
    current_namespace,
    find_access,
    plain_access,
    read_context,
    users_kubeconfig,
)

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
    with pytest.raises(InvalidInput, match=r"^no cluster to talk to: [^\n]*$"):
        await find_access(str(path))


def of_site(folder: Path, name: str, **more: Any) -> Path:
    """A kubeconfig in a folder of its own, as each cloud writes one."""
    (folder / name).mkdir()
    cluster = {"server": f"https://{name}.example.com", "certificate-authority": "ca.pem"}
    config = {
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": name}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"of-{name}"}}],
    }
    path = folder / name / "kubeconfig"
    path.write_text(yaml.safe_dump(config | more))
    return path


async def test_of_several_kubeconfigs_the_first_current_context_counts_as_for_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = of_site(tmp_path, "staging"), of_site(tmp_path, "prod")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'missing'}::{second}")
    found = await find_access(None)
    assert (found.host, found.token) == ("https://staging.example.com", "staging")
    assert found.ssl_ca_cert == str(first.parent / "ca.pem")
    assert current_namespace(None) == "of-staging"


async def test_server_user_and_namespace_are_those_of_one_context_wherever_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `kubectl config use-context` leaves it: it writes the choice into the first file."""
    prod = {"name": "prod", "user": {"token": "the first one's"}}
    chooses = of_site(tmp_path, "chooses", **{"current-context": "prod", "users": [prod], "contexts": None})
    prod_file = of_site(tmp_path, "prod")
    monkeypatch.setenv("KUBECONFIG", f"{chooses}:{prod_file}")
    found = await find_access(None)
    assert (found.host, found.token) == ("https://prod.example.com", "the first one's")
    assert found.ssl_ca_cert == str(prod_file.parent / "ca.pem")
    assert current_namespace(None) == "of-prod"


async def test_a_context_that_is_named_counts_instead_of_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = of_site(tmp_path, "staging"), of_site(tmp_path, "prod")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")  # in a pod, too
    found = await find_access(users_kubeconfig(None), "prod")
    assert (found.host, found.token) == ("https://prod.example.com", "prod")
    assert current_namespace(None, "prod") == "of-prod"
    with pytest.raises(InvalidInput, match=r"^no cluster to talk to: .* has no context qa; known: prod and staging$"):
        await find_access(users_kubeconfig(None), "qa")


async def test_an_empty_name_of_a_context_counts_as_none_as_for_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script says `--context "$CTX"`, whether the variable is set or not."""
    path = str(of_site(tmp_path, "prod"))
    assert (await find_access(path, "")).host == "https://prod.example.com"
    monkeypatch.setenv("KUBECONFIG", path)
    assert current_namespace(None, "") == "of-prod"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    with pytest.raises(InvalidInput, match="this pod has no service account"):
        await find_access(None, "")


def test_a_program_is_named_relative_to_its_kubeconfig_unless_it_is_looked_for(tmp_path: Path) -> None:
    for command, expected in (("./bin/login", str(tmp_path / "bin/login")), ("aws", "aws")):
        found = read_context(write(tmp_path, user={"exec": {"command": command}}))
        assert found.user["exec"]["command"] == expected


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param(
            {"current-context": ""}, "has no current context; name one: kubectl config use-context", id="none"
        ),
        pytest.param({"current-context": "x"}, "it has no context that is called x", id="unknown"),
        pytest.param({"users": []}, "it has no user that is called a", id="a user who is nowhere"),
        pytest.param({"clusters": None}, "it has no cluster that is called a", id="a cluster that is nowhere"),
    ],
)
def test_what_a_context_lacks_is_named(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_context(str(of_site(tmp_path, "a", **more)))


async def test_in_a_pod_a_person_means_kubeconfig_and_a_daemon_the_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = tmp_path / "account"
    account.mkdir()
    for name in ("ca.crt", "token", "namespace"):
        (account / name).write_text("of-the-pod")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(of_site(tmp_path, "staging")))
    assert (await find_access(None)).host == "https://10.96.0.1:443"
    assert (await find_access(users_kubeconfig(None))).host == "https://staging.example.com"
    assert current_namespace(None) == "of-staging"
    monkeypatch.delenv("KUBECONFIG")
    assert (await find_access(users_kubeconfig(None))).host == "https://10.96.0.1:443"
    assert current_namespace(None) == "of-the-pod"
    with monkeypatch.context() as patched:
        patched.setattr(os.path, "expanduser", str)  # the user of a container may have no home
        assert users_kubeconfig(None) is None
    (tmp_path / ".kube").mkdir()
    of_site(tmp_path, "home").rename(tmp_path / ".kube" / "config")
    assert (await find_access(users_kubeconfig(None))).host == "https://home.example.com"
    assert (await find_access(users_kubeconfig(tmp_path / "staging" / "kubeconfig"))).host.startswith("https://staging")


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
