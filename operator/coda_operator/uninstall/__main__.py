"""`python -m coda_operator.uninstall`: takes Coda out of the cluster. Says each step; one sentence and 1 on failure."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Final

from coda.errors import CodaError, Outage
from coda_kube.api.client import connect
from coda_operator.uninstall.removal import uninstall
from coda_operator.uninstall.settings import Settings, read_settings

log = logging.getLogger(__name__)

MOST_TRIES: Final = 5
PAUSE_S: Final = 2.0


async def _run(settings: Settings) -> None:
    """An API server that is busy or away for a moment costs a pause: every step is safe to repeat."""
    client = await connect(settings.kubeconfig, timeout_s=30.0)
    try:
        for tries_left in reversed(range(MOST_TRIES)):
            try:
                return await uninstall(client, settings)
            except Outage as error:
                if not tries_left:
                    raise
                log.warning("%s; beginning again", error)
                await asyncio.sleep(max(PAUSE_S, error.retry_after_s))
    finally:
        await client.close()


def main() -> None:
    """Read the settings and run."""
    try:
        settings = read_settings()
        logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        asyncio.run(_run(settings))
    except CodaError as error:
        sys.exit(f"coda-uninstall: {error}; the same again (`helm uninstall`, or this Job) goes on from here")


if __name__ == "__main__":
    main()
