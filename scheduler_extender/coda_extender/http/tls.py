"""The server's side of mutual TLS: a context that demands a certificate of Coda's authority, renewed with its files."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from coda.errors import InvalidInput

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 5.0
"""How often the files are looked at. A kubelet brings a renewed Secret within a minute or two."""

_FILES: Final = ("tls.crt", "tls.key", "ca.crt")


class ServerTls:
    """The context for new connections, from the files in `folder`. Open connections stay as they are."""

    def __init__(self, folder: Path) -> None:
        """Raises InvalidInput if the files cannot be used."""
        self._folder = folder
        self._seen = _contents(folder)
        try:
            self.context = _context(folder)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput(
                f"CODA_TLS_DIR: {folder} must hold tls.crt, tls.key and ca.crt of Coda: {error}"
            ) from error

    async def follow(self) -> None:
        """Take up renewed files, until cancelled. Files that do not fit together yet are looked at again."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Take up the files if they changed and can be used."""
        found = _contents(self._folder)
        if found == self._seen:
            return
        try:
            self.context = _context(self._folder)
        except (OSError, ssl.SSLError) as error:
            log.warning("the renewed certificate in %s cannot be used, the old one stays: %s", self._folder, error)
            return
        self._seen = found
        log.info("took up the renewed certificate in %s", self._folder)


def _contents(folder: Path) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() if (path := folder / name).is_file() else b"" for name in _FILES)


def _context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # connections last for hours: nothing is resumed
    context.load_verify_locations(folder / "ca.crt")
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context
