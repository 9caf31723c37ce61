"""What a planner process is told of the past: the run times that the operator publishes from its history store."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from coda.errors import CodaError
from coda.history import RunGroup
from coda_kube.api.client import Client, NotFound
from coda_kube.objects.run_times import NAME, PATH, groups_from_json

log = logging.getLogger(__name__)

_PATIENCE_S: Final = 2.0  # a planner without a past works too, so nothing waits for it. Our choice


async def past_run_times(client: Client) -> tuple[RunGroup, ...]:
    """Return the published run times; none if there are none, if they cannot be read, or after two seconds."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return groups_from_json(await client.get(PATH))
    except NotFound:
        return ()  # no job has finished yet, or the operator keeps no history
    except (CodaError, TimeoutError) as error:
        log.warning("the planner begins without the run times of %s: %s", NAME, error or "no answer")
        return ()
