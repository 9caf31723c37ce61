"""The order in which Coda goes.

First nothing new becomes Coda's, then nobody writes for Coda any more, and only then is taken back what Coda wrote:
else a part that still runs would write it again. The policies that protect Coda's keys go last.
"""

from __future__ import annotations

import logging
from typing import Final

from coda_kube.api.client import Client
from coda_operator.uninstall.leftovers import (
    clean_nodes,
    delete_profiles,
    delete_records,
    limited_nodes,
    remove_policies,
)
from coda_operator.uninstall.parts import WRITERS, stop
from coda_operator.uninstall.settings import Settings
from coda_operator.uninstall.training_jobs import end_jobs, lift_finalizers
from coda_operator.uninstall.waiting_pods import free_waiting_pods

log = logging.getLogger(__name__)

MUTATING: Final = ("coda-cpu-jobs", "coda-returning-jobs", "coda-training-job-users", "coda-cpu-job-users")
VALIDATING: Final = (
    "coda-agent-events",
    "coda-parameters",
    "coda-pool-nodes",
    "coda-pool-taint",
    "coda-reserved-keys",
    "coda-sizes",
    "coda-seats",
    "coda-users",
    "coda-owners",
    "coda-orphans",
    "coda-writers",
)


async def uninstall(client: Client, settings: Settings) -> None:
    """Take Coda out, all but what Helm deletes by itself. Raises a CodaError; safe to repeat."""
    await remove_policies(client, "mutating", MUTATING)
    if settings.uninstall_jobs == "end":
        await end_jobs(client, within_s=settings.uninstall_wait_s)
    await stop(client, WRITERS, within_s=settings.uninstall_wait_s)
    if limited := await limited_nodes(client):
        log.warning(
            "on these nodes the agent could not put back what it had limited, a restart of the node does: %s",
            ", ".join(limited),
        )
    await delete_profiles(client)
    await lift_finalizers(client)
    await free_waiting_pods(client, within_s=settings.uninstall_wait_s)
    if settings.uninstall_nodes == "clean":
        await clean_nodes(client)
    # Not before: where Coda's scheduler has room for a pod that keeps its place, it binds it.
    await stop(client, {"scheduler": "deployments"}, stopped=WRITERS, within_s=settings.uninstall_wait_s)
    await delete_records(client)
    await remove_policies(client, "validating", VALIDATING)
    log.info("Coda is out of the cluster; TrainingJobs that are left are objects that nobody reads")
