"""`python -m coda_operator.uninstall`: takes Coda out of the cluster. Says each step; one sentence and 1 on failure."""

from __future__ import annotations

import asyncio
import logging
import sys

from coda.errors import CodaError
from coda_kube.api.client import connect
from coda_operator.uninstall.removal import uninstall
from coda_operator.uninstall.settings import Settings, read_settings


async def _run(settings: Settings) -> None:
    client = await connect(settings.kubeconfig, timeout_s=30.0)
    try:
        await uninstall(client, settings)
    finally:
        await client.close()


def main() -> None:
    """Read the settings and run."""
    try:
        settings = read_settings()
        logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        asyncio.run(_run(settings))
    except CodaError as error:
        sys.exit(f"coda-uninstall: {error}; `helm uninstall` again goes on from here")


if __name__ == "__main__":
    main()
