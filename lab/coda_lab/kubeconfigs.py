"""Kubeconfigs of local clients, and the tokens of agents, which name the node they are on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from coda_kube.api.client import Client
from coda_kube.objects.names import SYSTEM_NAMESPACE

_TOKEN_S: Final = 10 * 365 * 86_400  # as long as any local cluster may live


async def write_agent_credentials(admin: Client, path: Path, *, node: str, server: str, authority: Path) -> None:
    """Write a kubeconfig of the agent's account on `node`, which must exist.

    The API server signs the node's name into the token, as it does for a DaemonSet's pod there."""
    bound = {"apiVersion": "v1", "kind": "Node", "name": node}
    bound["uid"] = (await admin.get(f"/api/v1/nodes/{node}"))["metadata"]["uid"]
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_S, "boundObjectRef": bound},
    }
    account = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/coda-agent"
    token = (await admin.create(f"{account}/token", request))["status"]["token"]
    write_private(path, kubeconfig_text("agent", token, server, authority))


def kubeconfig_text(identity: str, token: str, server: str, authority: Path) -> str:
    """Return a kubeconfig with a token."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "coda", "cluster": {"server": server, "certificate-authority": str(authority)}}],
            "users": [{"name": identity, "user": {"token": token}}],
            "contexts": [{"name": "coda", "context": {"cluster": "coda", "user": identity}}],
            "current-context": "coda",
        },
        sort_keys=False,
    )


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.touch(mode=0o600)
    path.write_text(text)
