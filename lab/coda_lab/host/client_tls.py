"""The client's side of mutual TLS, for programs of the lab that ask an extender as kube-scheduler does."""

from __future__ import annotations

import ssl
from pathlib import Path


def client_context(folder: Path) -> ssl.SSLContext:
    """Return a context with the certificate, key and authority in `folder`."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context
