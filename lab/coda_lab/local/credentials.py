"""One random token and one kubeconfig for each client of the local API server, and the roles that exist only locally.

Coda's own parts carry the names of their service accounts, so they have exactly the rights of `deploy/manifests`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coda_kube.objects.names import SYSTEM_NAMESPACE
from coda_lab.kubeconfigs import kubeconfig_text, write_private
from coda_lab.realnode.configuration import NODE
from coda_lab.spec import identity_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A name and the groups that come with it."""

    name: str
    user: str
    groups: tuple[str, ...] = ()


def _component(name: str) -> Identity:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{SYSTEM_NAMESPACE}")
    return Identity(name=name, user=f"system:serviceaccount:{SYSTEM_NAMESPACE}:coda-{name}", groups=groups)


USER = "local-user"
_KUBELETS = "local-kubelets"
_FORWARDER = "local-forwarder"
_MACHINES = "local-machines"

IDENTITIES = (
    Identity(name="admin", user="local-admin", groups=("system:masters",)),
    Identity(name="user", user=USER),
    _component("operator"),
    _component("extender"),
    _component("agent"),
    Identity(name="kubelets", user=_KUBELETS),
    Identity(name="kubelet", user=f"system:node:{NODE}", groups=("system:nodes",)),
    Identity(name="forwarder", user=_FORWARDER),
    Identity(name="machines", user=_MACHINES),
    Identity(name="kube-scheduler", user="system:kube-scheduler"),
    Identity(name="kube-controller-manager", user="system:kube-controller-manager"),
)


def write_credentials(
    folder: Path, *, server: str, authority: Path, server_by_part: Mapping[str, str] | None = None
) -> Path:
    """A kubeconfig per identity, and per part with a server of its own, as `<folder>/<name>.yaml`.

    The token file for the API server is returned."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = []
    for number, identity in enumerate(IDENTITIES, 1):
        token = secrets.token_hex(16)
        lines.append(f'{token},{identity.user},{number},"{",".join(identity.groups)}"\n')
        write_private(folder / f"{identity.name}.yaml", kubeconfig_text(identity.name, token, server, authority))
        for part, its_server in (server_by_part or {}).items():
            if identity_of(part) == identity.name:
                write_private(folder / f"{part}.yaml", kubeconfig_text(identity.name, token, its_server, authority))
    tokens = folder / "tokens.csv"
    write_private(tokens, "".join(lines))
    return tokens


def local_objects() -> tuple[dict[str, Any], ...]:
    """The roles of clients that exist only here: plain user, simulated kubelets, forwarder, emulated machines."""
    return (
        _cluster_role("coda-local-user", [_rule("", ["nodes"], _READ), _rule("scheduling.k8s.io", ["*"], _READ)]),
        _cluster_binding("coda-local-user", USER, "coda-local-user"),
        _cluster_binding("coda-local-user-edit", USER, "edit"),
        _cluster_binding("coda-local-user-jobs", USER, "coda-edit"),
        _cluster_role(
            "coda-local-kubelets",
            [
                _rule("", ["nodes", "nodes/status", "pods/status"], [*_READ, *_WRITE]),
                _rule("", ["pods"], [*_READ, "delete"]),
                _rule("coordination.k8s.io", ["leases"], [*_READ, *_WRITE]),
                _rule("", ["events"], ["create", "patch", "update"]),
                _rule("coda.scheduler", ["trainingjobs"], _READ),
            ],
        ),
        _cluster_binding("coda-local-kubelets", _KUBELETS, "coda-local-kubelets"),
        _cluster_role("coda-local-forwarder", [_rule("", ["pods"], _READ)]),
        _cluster_binding("coda-local-forwarder", _FORWARDER, "coda-local-forwarder"),
        _cluster_role(
            "coda-local-machines", [_rule("", ["pods"], _READ), _rule("coda.scheduler", ["trainingjobs"], _READ)]
        ),
        _cluster_binding("coda-local-machines", _MACHINES, "coda-local-machines"),
    )


_READ = ["get", "list", "watch"]
_WRITE = ["create", "update", "patch", "delete"]
_RBAC = "rbac.authorization.k8s.io"


def _rule(group: str, resources: list[str], verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _cluster_role(name: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}


def _cluster_binding(name: str, user: str, role: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}],
    }
