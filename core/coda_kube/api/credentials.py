"""How to reach the API server, and as whom: from the pod's service account or from kubeconfigs.

Several kubeconfigs are merged as kubectl merges them: what the first one says of a name counts. Read here: a service
account, and a user with a token or with certificates in files. For every other login (programs that give tokens,
certificates within the file) the `kubernetes` package is imported. It takes 10 MiB of memory that no request needs.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from coda.errors import InvalidInput
from coda.wording import listed

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_S: Final = 60.0
"""A token from a file is used this long before it is read again. As in the `kubernetes` package; the kubelet renews it
hourly."""

RENEW_EARLY_S: Final = 10.0
"""A token of a program counts as ended so long before it ends: a request may wait for a connection. Our choice."""

MOST_CONNECTIONS: Final = 100
LINE_BYTES: Final = 1 << 23
"""A watch event may be as large as an object: etcd's limit is 1.5 MiB, but the server writes `<` as six bytes. aiohttp
reads lines of up to twice this size. A longer line ends each watch that meets it, at every change of the object."""

_KUBECONFIG: Final = "~/.kube/config"
_FILES: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_PLAIN_CLUSTER: Final = {"server", "certificate-authority", "insecure-skip-tls-verify", "proxy-url"}
_PLAIN_USER: Final = {"token", "tokenFile", "client-certificate", "client-key"}


class ProgramLogin:
    """The program of a kubeconfig that gives tokens. They end, so it is asked again."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader  # of the package; it has run the program once
        self._one_at_a_time = asyncio.Lock()

    async def authorization(self, *, refused: str | None = None) -> str:
        """Return `Bearer ...` that has not ended, and another one than `refused`, if the program gives one."""
        async with self._one_at_a_time:
            if self._has_ended() or self._loader.token == refused:
                vars(self._loader).pop("exec_plugin_expiry", None)  # as long as it lies ahead, the package runs nothing
                await self._loader.load_from_exec_plugin()
            token: str = self._loader.token
            return token

    def _has_ended(self) -> bool:
        ends = getattr(self._loader, "exec_plugin_expiry", None)
        return ends is not None and (ends - datetime.now(UTC)).total_seconds() < RENEW_EARLY_S


@dataclass(slots=True, kw_only=True)
class Access:
    """A server and an identity. The names are those of the Configuration of the `kubernetes` package, which may be used
    instead. `key_file`: the key of the certificate, unless `cert_file` has both. `tls_server_name`: the name that the
    server's certificate has, if not that of `host`."""

    host: str
    ssl_ca_cert: str | None = None
    verify_ssl: bool = True
    tls_server_name: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    proxy: str | None = None
    scheme: str = "Bearer"
    token: str = ""
    token_file: Path | None = None
    login: ProgramLogin | None = None
    _read_at_s: float = field(default=float("-inf"))

    async def get_api_key_with_prefix(self, _identifier: str) -> str | None:
        """Return `Bearer ...`; None without a token. Raises OSError if its file cannot be read."""
        if self.login is not None:
            return await self.login.authorization()
        if self.token_file is not None and time.monotonic() - self._read_at_s >= TOKEN_S:
            self.token, self._read_at_s = self.token_file.read_text().strip(), time.monotonic()
        return f"{self.scheme} {self.token}" if self.token else None


def new_session(
    configuration: Any, *, opened: Callable[[socket.socket], None] = lambda _: None, **options: Any
) -> aiohttp.ClientSession:
    """Return connections to the server of an Access or of a Configuration. Its certificates are read now.

    `opened` is told of each socket. `options`: more arguments of ClientSession."""

    def open_socket(address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, *_ = address
        found = socket.socket(family, kind, protocol)
        opened(found)
        return found

    connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS, ssl=_context(configuration), socket_factory=open_socket)
    # With trust_env, the environment and ~/.netrc are read for every request: a fifth of the cost of a busy client.
    return aiohttp.ClientSession(
        connector=connector,
        trust_env=False,
        proxy=configuration.proxy,
        read_bufsize=LINE_BYTES,
        middlewares=_middlewares(configuration.tls_server_name, getattr(configuration, "login", None)),
        **options,
    )


def _middlewares(server_name: str | None, login: ProgramLogin | None) -> tuple[aiohttp.ClientMiddlewareType, ...]:
    """What few clients need, of every request. No daemon pays for it, and sessions of other libraries have it too."""

    async def send(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        request.server_hostname = server_name
        response = await handler(request)
        if login is None or response.status != HTTPStatus.UNAUTHORIZED:
            return response
        shown = request.headers.get("Authorization")
        another = await login.authorization(refused=shown)
        if another == shown:
            return response
        response.release()
        request.headers["Authorization"] = another
        return await handler(request)

    return (send,) if server_name or login else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A context of kubeconfigs. It names files by whole paths. `namespace`: empty if it names none."""

    name: str
    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    namespace: str


async def find_access(kubeconfig: str | None, context_name: str | None = None) -> Access:
    """Return how to reach the cluster: from `kubeconfig`, else the pod's service account, else the user's kubeconfig.

    `context_name`: a context that somebody names; only kubeconfigs have any; empty is none. Raises InvalidInput."""
    if kubeconfig is None and not context_name and "KUBERNETES_SERVICE_HOST" in os.environ:
        return _of_service_account(os.environ, SERVICE_ACCOUNT)
    where = kubeconfig or os.environ.get("KUBECONFIG") or _KUBECONFIG
    context = read_context(where, context_name)
    plain = _plain(context)
    return await _by_package(context, where) if plain is None else plain


def users_kubeconfig(kubeconfig: Path | None) -> str | None:
    """Return what a person means who says `kubeconfig`, or nothing: KUBECONFIG, else the file in the home folder.

    None if there is no such file: in a pod, the service account is left. A daemon never asks here: what its pod's
    environment says for people does not concern it."""
    if kubeconfig is not None:
        return str(kubeconfig)
    if where := os.environ.get("KUBECONFIG"):
        return where
    return _KUBECONFIG if _expanded(_KUBECONFIG).exists() else None


def current_namespace(kubeconfig: Path | None, context_name: str | None = None) -> str:
    """Return the namespace of the context that `users_kubeconfig` leads to, or of the pod; else `default`."""
    where = users_kubeconfig(kubeconfig)
    try:
        found = (
            read_context(where, context_name).namespace
            if where
            else (SERVICE_ACCOUNT / "namespace").read_text().strip()
        )
    except (InvalidInput, OSError, UnicodeDecodeError):
        return "default"
    return found or "default"


def read_context(where: str, name: str | None = None) -> Context:
    """Return the context of that name, else the current one, of kubeconfigs (`where`: as KUBECONFIG names them).

    Raises InvalidInput.

    Ties: the first file that has a current context names it, the first that knows a name says what it means. Source:
    client-go, `tools/clientcmd/loader.go`. Relative paths in a file begin at its folder."""
    paths = [_expanded(path).absolute() for path in where.split(os.pathsep) if path]
    configs = [(path, _read(path)) for path in paths if path.exists()]
    if not configs:
        raise InvalidInput(f"no cluster to talk to: {where} does not exist; set KUBECONFIG to your kubeconfig")
    if name and name not in _context_names(configs):
        known = listed(_context_names(configs)) or "none"
        raise InvalidInput(f"no cluster to talk to: {where} has no context {name}; known: {known}")
    name = name or next((config["current-context"] for _, config in configs if config.get("current-context")), None)
    if name is None:
        raise InvalidInput(
            f"no cluster to talk to: {where} has no current context; name one: kubectl config use-context"
        )
    try:
        context = _named(configs, "context", name)
        user = _named(configs, "user", context["user"]) if context.get("user") else {}
        cluster = _named(configs, "cluster", context["cluster"])
        return Context(name=str(name), cluster=cluster, user=user, namespace=str(context.get("namespace") or ""))
    except (LookupError, TypeError, AttributeError) as error:
        raise InvalidInput(f"no cluster to talk to: {where} is no kubeconfig: {error}") from error


def plain_access(where: str) -> Access | None:
    """Return the Access of the current context there; None where the package is needed. Raises InvalidInput."""
    return _plain(read_context(where))


def proxy_for(server: str, environ: Mapping[str, str]) -> str | None:
    """Return the proxy that the environment names for this server, if any: the one that kubectl takes.

    A pod's service account is no exception: client-go makes none, so one environment means the same to all controllers
    of a cluster, and the server that a pod is told may lie beyond the proxy. Source: golang.org/x/net,
    `http/httpproxy/proxy.go`."""
    url = urlsplit(server)
    proxy = _variable(environ, f"{url.scheme}_proxy")
    if not proxy or not url.hostname:
        return None
    address = _address(url.hostname)
    if url.hostname == "localhost" or (address and address.is_loopback):
        return None
    named = re.search(r":(\d+)$", url.netloc)
    port = named[1] if named else "443" if url.scheme == "https" else "80"
    entries = [entry.strip() for entry in _variable(environ, "no_proxy").lower().split(",")]
    if any(entry == "*" or _excepts(entry, address or url.hostname, port) for entry in entries):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environ: Mapping[str, str], name: str) -> str:
    """The one in capitals before the other, as Go's `getEnvAny`; curl takes them the other way round."""
    return environ.get(name.upper()) or environ.get(name) or ""


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _excepts(entry: str, host: str | IPv4Address | IPv6Address, port: str) -> bool:
    """Whether an entry names the server: by a CIDR, or by an address or a domain, each perhaps with a port."""
    with_port = re.fullmatch(r"(?:\[(.*)\]|([^:]*)):([^:]*)", entry)  # an IPv6 address without brackets has none
    name, only = (with_port[1] or with_port[2] or "", with_port[3]) if with_port else (entry, "")
    if only not in ("", port):
        return False
    if not isinstance(host, str):
        try:
            return host in ip_network(name, strict=False)
        except ValueError:
            return False
    domain = name.removeprefix("*") if name.startswith("*.") else name
    if domain.startswith("."):  # what is below it, not itself
        return host.endswith(domain)
    return domain != "" and f".{host}".endswith(f".{domain}")


def _of_service_account(environ: Mapping[str, str], folder: Path) -> Access:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    access = Access(
        host=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ssl_ca_cert=str(folder / "ca.crt"),
        token_file=folder / "token",
    )
    for path in (folder / "ca.crt", folder / "token"):
        if not path.is_file():
            raise InvalidInput(f"no cluster to talk to: this pod has no service account ({path} does not exist)")
    return access


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # the user of a container may have no home
        return Path(path)


def _read(path: Path) -> Mapping[str, Any]:
    import yaml  # a pod with a service account needs none

    try:
        config = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  both are safe
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())  # a parser says it in several lines
        raise InvalidInput(f"no cluster to talk to: {path} is no kubeconfig: {why}") from error
    if not isinstance(config, Mapping | None):
        raise InvalidInput(f"no cluster to talk to: {path} is no kubeconfig: it holds no fields")
    return config or {}


def _context_names(configs: Sequence[tuple[Path, Mapping[str, Any]]]) -> list[str]:
    """The names of all contexts, as far as the files can be understood."""
    lists = [config.get("contexts") for _, config in configs]
    entries = [entry for found in lists if isinstance(found, list) for entry in found if isinstance(entry, Mapping)]
    return sorted({str(entry.get("name")) for entry in entries})


def _named(configs: Sequence[tuple[Path, Mapping[str, Any]]], kind: str, name: str) -> Mapping[str, Any]:
    """What the first file that knows this name says of it. Raises LookupError, TypeError or AttributeError."""
    for path, config in configs:
        for entry in config.get(f"{kind}s") or ():
            if entry["name"] == name:
                return _with_whole_paths(entry[kind] or {}, path.parent)
    raise LookupError(f"it has no {kind} that is called {name}")


def _with_whole_paths(entry: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    found = {**entry, **{name: str(folder / entry[name]) for name in _FILES if entry.get(name)}}
    program = entry.get("exec")
    if program and os.sep in program["command"]:  # others are looked for in PATH
        found["exec"] = {**program, "command": str(folder / program["command"])}
    return found


def _plain(context: Context) -> Access | None:
    cluster, user = context.cluster, context.user
    if not (cluster.keys() <= _PLAIN_CLUSTER and user.keys() <= _PLAIN_USER and cluster.get("server")):
        return None
    token_file = user.get("tokenFile")
    return Access(
        host=str(cluster["server"]).rstrip("/"),
        ssl_ca_cert=cluster.get("certificate-authority"),
        verify_ssl=not cluster.get("insecure-skip-tls-verify"),
        cert_file=user.get("client-certificate"),
        key_file=user.get("client-key"),
        proxy=cluster.get("proxy-url"),
        token=user.get("token") or "",
        token_file=Path(token_file) if token_file else None,
    )


async def _by_package(context: Context, where: str) -> Access:
    from kubernetes.aio import client, config

    broken = (LookupError, TypeError, ValueError, AttributeError)  # the package checks little
    configuration = client.Configuration()
    name = context.name
    chosen = {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": dict(context.cluster)}],
        "users": [{"name": name, "user": dict(context.user)}],
    }
    try:
        loader = await config.load_kube_config_from_dict(chosen, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise InvalidInput(f"no cluster to talk to: {where}: {error}") from error
    except broken as error:
        raise InvalidInput(f"no cluster to talk to: {where} is no kubeconfig: {error}") from error
    scheme, _, token = (configuration.api_key.get("BearerToken") or "").partition(" ")
    return Access(
        host=configuration.host,
        ssl_ca_cert=configuration.ssl_ca_cert,
        verify_ssl=configuration.verify_ssl,
        tls_server_name=configuration.tls_server_name,
        cert_file=configuration.cert_file,
        key_file=configuration.key_file,
        proxy=configuration.proxy,
        scheme=scheme,
        token=token,
        login=ProgramLogin(loader) if token and "exec" in context.user else None,
    )


def _context(configuration: Any) -> ssl.SSLContext | bool:
    if not configuration.host.startswith("https:"):
        return True  # not used: there is no TLS
    data = getattr(configuration, "ca_cert_data", None)
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13 sets it: EKS's authorities fail, and kubectl asks not
    return context
