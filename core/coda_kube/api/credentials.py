"""How to reach the API server, and as whom: from the pod's service account or a kubeconfig.

Read here: a service account, and a kubeconfig with a token or with certificates in files. For every other login
(programs that give tokens, certificates within the file, several files) the `kubernetes` package is imported. It takes
10 MiB of memory that no request needs.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from coda.errors import InvalidInput

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_S: Final = 60.0
"""A token from a file is used this long before it is read again. As in the `kubernetes` package; the kubelet renews it
hourly."""

MOST_CONNECTIONS: Final = 100
LINE_BYTES: Final = 1 << 23
"""A watch event may be as large as an object: etcd's limit is 1.5 MiB, but the server writes `<` as six bytes. aiohttp
reads lines of up to twice this size. A longer line ends each watch that meets it, at every change of the object."""

_PLAIN_CLUSTER: Final = {"server", "certificate-authority", "insecure-skip-tls-verify", "proxy-url"}
_PLAIN_USER: Final = {"token", "tokenFile", "client-certificate", "client-key"}


@dataclass(slots=True, kw_only=True)
class Access:
    """A server and an identity. The names are those of the Configuration of the `kubernetes` package, which may be used
    instead. `key_file`: the key of the certificate, unless `cert_file` has both."""

    host: str
    ssl_ca_cert: str | None = None
    verify_ssl: bool = True
    cert_file: str | None = None
    key_file: str | None = None
    proxy: str | None = None
    token: str = ""
    token_file: Path | None = None
    _read_at_s: float = field(default=float("-inf"))

    async def get_api_key_with_prefix(self, _identifier: str) -> str | None:
        """Return `Bearer ...`; None without a token. Raises OSError if its file cannot be read."""
        if self.token_file is not None and time.monotonic() - self._read_at_s >= TOKEN_S:
            self.token, self._read_at_s = self.token_file.read_text().strip(), time.monotonic()
        return f"Bearer {self.token}" if self.token else None


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
        connector=connector, trust_env=False, proxy=configuration.proxy, read_bufsize=LINE_BYTES, **options
    )


async def find_access(kubeconfig: str | None) -> Any:
    """Return an Access, or a Configuration where the package is needed. From `kubeconfig`, else the pod's service
    account, else the user's kubeconfig. Raises InvalidInput."""
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return _of_service_account(os.environ, SERVICE_ACCOUNT)
    where = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    plain = plain_access(where)
    return await _by_package(kubeconfig, where) if plain is None else plain


def plain_access(where: str) -> Access | None:
    """Return what a kubeconfig says (`where`: as KUBECONFIG names it); None where the package is needed, also to say
    what is wrong with the file. Raises InvalidInput if there is no file."""
    paths = [Path(path).expanduser() for path in where.split(os.pathsep)]
    if not any(path.exists() for path in paths):
        raise InvalidInput(f"no cluster to talk to: {where} does not exist; set KUBECONFIG to your kubeconfig")
    return _of_kubeconfig(paths[0]) if len(paths) == 1 else None


def current_namespace(kubeconfig: Path | None) -> str:
    """Return the namespace that the kubeconfig's current context names, as kubectl takes it; else `default`."""
    import yaml

    where = str(kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config")
    for path in [Path(path).expanduser() for path in where.split(os.pathsep) if path]:
        try:
            config = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  both are safe
            context = _named(config, "contexts", "context", config["current-context"])
        except (OSError, yaml.YAMLError, LookupError, TypeError, UnicodeDecodeError):
            continue
        return str(context.get("namespace") or "default")
    return "default"


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


def _of_kubeconfig(path: Path) -> Access | None:
    import yaml  # a pod with a service account needs none

    try:
        config = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  both are safe
        context = _named(config, "contexts", "context", config["current-context"])
        cluster = _named(config, "clusters", "cluster", context["cluster"])
        user = _named(config, "users", "user", context["user"])
        server = str(cluster["server"]).rstrip("/")
    except (OSError, yaml.YAMLError, LookupError, TypeError, UnicodeDecodeError):
        return None
    if not (cluster.keys() <= _PLAIN_CLUSTER and user.keys() <= _PLAIN_USER):
        return None

    def file(entries: Mapping[str, Any], name: str) -> str | None:
        return str(path.parent / entries[name]) if entries.get(name) else None

    token_file = file(user, "tokenFile")
    return Access(
        host=server,
        ssl_ca_cert=file(cluster, "certificate-authority"),
        verify_ssl=not cluster.get("insecure-skip-tls-verify"),
        cert_file=file(user, "client-certificate"),
        key_file=file(user, "client-key"),
        proxy=cluster.get("proxy-url"),
        token=user.get("token") or "",
        token_file=None if token_file is None else Path(token_file),
    )


def _named(config: Mapping[str, Any], kinds: str, kind: str, name: str) -> Mapping[str, Any]:
    found = next((entry[kind] or {} for entry in config[kinds] if entry["name"] == name), None)
    if not isinstance(found, Mapping):
        raise LookupError(name)
    return found


async def _by_package(kubeconfig: str | None, where: str) -> Any:
    import yaml
    from kubernetes.aio import client, config

    broken = (yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError)  # the package checks little
    configuration = client.Configuration()
    try:
        await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise InvalidInput(f"no cluster to talk to: {where}: {error}") from error
    except broken as error:
        raise InvalidInput(f"no cluster to talk to: {where} is no kubeconfig: {error}") from error
    return configuration


def _context(configuration: Any) -> ssl.SSLContext | bool:
    if not configuration.host.startswith("https:"):
        return True  # not used: there is no TLS
    data = getattr(configuration, "ca_cert_data", None)
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if getattr(configuration, "disable_strict_ssl_verification", False):
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
