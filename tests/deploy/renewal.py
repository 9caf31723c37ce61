"""Certificates that are renewed in Secrets and in the pods that mount them, and a client that shows them."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Iterable
from typing import Final

from coda_kube.api.client import Client
from coda_kube.certificates import SERVER_NAME, KeyPair, files_of, new_leaf
from coda_lab.host.ports import LOOPBACK
from coda_operator.certificates import SERVES_BY_SECRET
from tests.deploy.charts import NAMESPACE
from tests.deploy.pods_as_processes import RunningPod

TAKEN_UP: Final = "took up the renewed certificate"
"""An extender's log says so."""
QUESTION: Final = b'{"Pod":{"metadata":{"name":"p","namespace":"d","uid":"p"},"spec":{"containers":[]}},"NodeNames":[]}'


async def ask_anew(port: int, context: ssl.SSLContext) -> None:
    """A filter call on a connection of its own, which must be answered."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=context, server_hostname=SERVER_NAME)
    try:
        writer.write(b"POST /filter HTTP/1.1\r\nHost: c\r\nContent-Length: %d\r\n\r\n%b" % (len(QUESTION), QUESTION))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
    finally:
        writer.close()


async def renew_certificate(admin: Client, part: str, pods: Iterable[RunningPod]) -> None:
    """A new leaf of the same authority, as the operator makes it, in the Secret of a part and in its pods' folders."""
    name = f"coda-{part}-tls"
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    authority = (await admin.get(f"{path}/coda-authority"))["data"]
    pair = KeyPair(*(base64.b64decode(authority[file]) for file in ("tls.crt", "tls.key")))
    files = files_of(new_leaf(pair, serves=SERVES_BY_SECRET[name], now_s=time.time()), pair)
    encoded = {file: base64.b64encode(content).decode() for file, content in files.items()}
    await admin.patch(f"{path}/{name}", {"data": encoded})
    for pod in pods:
        for file, content in files.items():
            fresh = pod.log.parent / "tls" / f"{file}.new"
            fresh.write_bytes(content)
            fresh.rename(fresh.with_suffix(""))
