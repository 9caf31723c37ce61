"""Makes and renews the certificates of extender and kube-scheduler, as Secrets that their pods mount.

The operator's leader does it, so that nothing else has to be installed, and no `helm upgrade` is needed in time. Both
sides read a renewed file at the next connection: no call is dropped, no process restarts.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from typing import Final

from coda.errors import CodaError, Conflict
from coda_kube.api.client import AlreadyExists, Client, NotFound
from coda_kube.certificates import KeyPair, end_s, files_of, is_authority, is_good, new_authority, new_leaf
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import SYSTEM_NAMESPACE

log = logging.getLogger(__name__)

SECRETS_PATH: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"
AUTHORITY: Final = "coda-authority"
SERVES_BY_SECRET: Final = {"coda-extender-tls": True, "coda-scheduler-tls": False}
CHECK_EVERY_S: Final = 60.0
RETRY_S: Final = 2.0

Found = tuple[KeyPair | None, str | None]
"""The pair in a Secret, and the Secret's version; None where there is no such thing."""

Show = Callable[[Mapping[str, float]], None]
"""Receives when the certificate in each Secret ends, in seconds since 1970; 0: it is not there, or never could be
read."""


class Certificates:
    """Keeps the three Secrets valid while `run` runs, also after somebody removes one."""

    def __init__(self, client: Client, show: Show = lambda _end_s: None, *, clock: Callable[[], float]) -> None:
        """`clock`: the API server's time. A node's own clock may be months off, and a certificate lasts as long."""
        self._client = client
        self._show = show
        self._clock = clock
        self._end_s: dict[str, float] = {}

    async def run(self) -> None:
        """Run until cancelled. Costs three requests a minute."""
        try:
            while True:
                wait_s = CHECK_EVERY_S
                try:
                    await self.ensure()
                except CodaError as error:
                    log.warning("the certificates of extender and scheduler are not checked: %s", error)
                    wait_s = RETRY_S
                self._show(self._end_s)
                await asyncio.sleep(wait_s)
        finally:
            self._show({})  # the next leader's word counts

    async def ensure(self) -> None:
        """Make what is missing, and renew what is due, as far as the Secrets can be read. Raises a CodaError."""
        now_s = self._clock()
        read_by_name, failures = await self._read_all()
        if AUTHORITY in read_by_name:
            await self._renew(read_by_name, now_s)
        if failures:
            raise failures[0]

    async def _read_all(self) -> tuple[dict[str, Found], list[CodaError]]:
        """What could be read, and why the others could not: each says for itself when it ends."""
        read_by_name: dict[str, Found] = {}
        failures: list[CodaError] = []
        for name in (AUTHORITY, *SERVES_BY_SECRET):
            try:
                read_by_name[name] = await self._read(name)
            except CodaError as error:
                self._end_s.setdefault(name, 0.0)
                failures.append(error)
        return read_by_name, failures

    async def _renew(self, read_by_name: Mapping[str, Found], now_s: float) -> None:
        authority, version = read_by_name[AUTHORITY]
        if authority is None or not is_authority(authority, now_s=now_s):
            authority = new_authority(now_s)
            await self._write(AUTHORITY, authority, authority, version)  # a Conflict: another replica was first
        for name, serves in SERVES_BY_SECRET.items():
            if name not in read_by_name:
                continue
            leaf, version = read_by_name[name]
            if leaf is None or not is_good(leaf, authority, now_s=now_s):
                await self._write(name, new_leaf(authority, serves=serves, now_s=now_s), authority, version)

    async def _read(self, name: str) -> Found:
        try:
            secret = await self._client.get(f"{SECRETS_PATH}/{name}")
        except NotFound:
            self._end_s[name] = 0.0
            return None, None
        data = secret.get("data") or {}
        try:
            pair = KeyPair(*(base64.b64decode(data[key], validate=True) for key in ("tls.crt", "tls.key")))
        except (LookupError, TypeError, ValueError):
            self._end_s[name] = 0.0
            return None, secret["metadata"]["resourceVersion"]
        self._note(name, pair)
        return pair, secret["metadata"]["resourceVersion"]

    async def _write(self, name: str, pair: KeyPair, authority: KeyPair, version: str | None) -> None:
        body = secret_json(name, pair, authority)
        if version is None:
            try:
                await self._client.create(SECRETS_PATH, body)
            except AlreadyExists as error:
                raise Conflict(str(error)) from error
        else:
            body["metadata"]["resourceVersion"] = version
            await self._client.replace(f"{SECRETS_PATH}/{name}", body)
        self._note(name, pair)
        log.info("made the certificate in the Secret %s", name)

    def _note(self, name: str, pair: KeyPair) -> None:
        self._end_s[name] = end_s(pair.certificate) or 0.0


def secret_json(name: str, pair: KeyPair, authority: KeyPair) -> Json:
    """Return the Secret. Its files are named as every program expects them."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {
            "name": name,
            "namespace": SYSTEM_NAMESPACE,
            "labels": {"app.kubernetes.io/name": "coda", "app.kubernetes.io/component": "tls"},
        },
        "data": {file: base64.b64encode(content).decode() for file, content in files_of(pair, authority).items()},
    }
