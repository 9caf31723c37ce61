"""PostgreSQL's certificate is checked against the authority that the settings name."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coda.errors import Outage
from coda_kube.certificates import SERVER_NAME, KeyPair, new_authority, new_leaf
from coda_operator.history import store_of

REACHED = "reached"
ANSWER = b"SFATAL\0C57P03\0M" + REACHED.encode() + b"\0\0"


@contextmanager
def server_with(pair: KeyPair, folder: Path) -> Iterator[int]:
    """The port of a server that asks for TLS, and then refuses in its protocol: whoever reads that has trusted it."""
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        raw, _ = listening.accept()
        with raw:
            raw.recv(8)
            raw.sendall(b"S")
            try:
                with context.wrap_socket(raw, server_side=True) as wrapped:
                    wrapped.recv(4096)
                    wrapped.sendall(b"E" + (len(ANSWER) + 4).to_bytes(4, "big") + ANSWER)
            except OSError:
                return  # the client does not trust it

    thread = threading.Thread(target=serve)
    thread.start()
    with listening:
        yield listening.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize(
    ("host", "more", "is_right_authority", "said"),
    [
        (SERVER_NAME, "", True, REACHED),
        (SERVER_NAME, "", False, "SSL error"),
        ("db.example.com", "", True, 'does not match host name "db.example.com"'),
        ("db.example.com", "&sslmode=verify-ca", True, REACHED),
        (SERVER_NAME, "&sslrootcert=/nowhere&sslmode=verify-full", True, '"/nowhere" does not exist'),
    ],
)
def test_a_server_is_trusted_by_its_authority_and_name(
    tmp_path: Path, is_file: bool, host: str, more: str, is_right_authority: bool, said: str
) -> None:
    authority, other = new_authority(time.time()), new_authority(time.time())
    (tmp_path / "ca.crt").write_bytes((authority if is_right_authority else other).certificate)
    with server_with(new_leaf(authority, serves=True, now_s=time.time()), tmp_path) as port:
        url = f"postgresql://coda:secret@{host}:{port}/d?hostaddr=127.0.0.1{more}"
        (tmp_path / "url").write_text(url)
        url_file = str(tmp_path / "url") if is_file else ""
        store = store_of("" if is_file else url, "", url_file=url_file, ca_file=str(tmp_path / "ca.crt"))
        assert store is not None
        with pytest.raises(Outage) as away:
            store.migrate()
        store.close()
    assert said in str(away.value.__cause__)
