"""Requests in the name of any account, as the API server's administrator may send them (impersonation)."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import yaml

from coda_kube.api.client import APPLY, MERGE
from coda_lab.local.cluster import LocalCluster

NODE_CLAIM = "authentication.kubernetes.io/node-name"
WIDE = "test:wide"
"""A group that may do all that the policies judge, so that a policy refuses and not RBAC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who asks. `node`: the node in its token."""

    user: str
    groups: tuple[str, ...] = ()
    node: str = ""
    more: Mapping[str, str] = field(default_factory=dict)

    def headers(self) -> list[tuple[str, str]]:
        """As kubectl sends them with --as, --as-group and --as-user-extra."""
        found = [("Impersonate-User", self.user)]
        found += [("Impersonate-Group", group) for group in (*self.groups, "system:authenticated")]
        if self.node:
            found.append((f"Impersonate-Extra-{NODE_CLAIM.replace('/', '%2F')}", self.node))
        return found


def component(name: str, **more: Any) -> Account:
    """A part of Coda."""
    return service_account("coda-system", f"coda-{name}", **more)


def service_account(namespace: str, name: str, **more: Any) -> Account:
    """A service account, with every right that the policies judge."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", WIDE)
    return Account(user=f"system:serviceaccount:{namespace}:{name}", groups=groups, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the API server said."""

    status: int
    message: str
    item: Any = None  # the object as it is stored, or would be
    warnings: tuple[str, ...] = ()

    @property
    def refused_by_policy(self) -> bool:
        """True if an admission policy of Coda refused it."""
        return self.status in (403, 422) and "ValidatingAdmissionPolicy 'coda-" in self.message


class Asker:
    """Sends dry runs, so that nothing remains, unless they are `for_real`."""

    def __init__(self, session: aiohttp.ClientSession, server: str, token: str) -> None:
        self._session = session
        self._server = server
        self._token = token

    async def ask(
        self, account: Account, method: str, path: str, body: Any, *, apply: bool = False, for_real: bool = False
    ) -> Answer:
        """One request in that account's name."""
        kind = {"PATCH": APPLY if apply else MERGE}.get(method, "application/json")
        headers = [("Authorization", f"Bearer {self._token}"), ("Content-Type", kind), *account.headers()]
        query = ({} if for_real else {"dryRun": "All"}) | ({"fieldManager": "test", "force": "true"} if apply else {})
        async with self._session.request(
            method, self._server + path, params=query, json=body, headers=headers
        ) as response:
            said = await response.json(content_type=None)
            warnings = tuple(response.headers.getall("Warning", ()))
            return Answer(status=response.status, message=str(said.get("message") or ""), item=said, warnings=warnings)

    async def label(self, path: str, key: str) -> str | None:
        """The label of an object now."""
        headers = {"Authorization": f"Bearer {self._token}"}
        async with self._session.get(self._server + path, headers=headers) as response:
            value = (await response.json())["metadata"].get("labels", {}).get(key)
            return None if value is None else str(value)


@asynccontextmanager
async def asking(cluster: LocalCluster) -> AsyncIterator[Asker]:
    """An asker, closed when the block is left."""
    config = yaml.safe_load(cluster.kubeconfig("admin").read_text())
    context = ssl.create_default_context(cafile=str(cluster.layout.certificate))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        yield Asker(session, cluster.server, config["users"][0]["user"]["token"])
