"""Evicts a pod as disruption budgets allow: its owner makes it anew, and need not count it as a failure."""

from __future__ import annotations

import logging

from coda.errors import Conflict, Outage
from coda_extender.written import Written
from coda_kube.api.client import Client, NotFound, Rejected, TooBusy
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import Pod

log = logging.getLogger(__name__)


async def evict(client: Client, pod: Pod, *, is_trial: bool = False) -> tuple[Written, str]:
    """Evict this pod, and no later one of its name. Returns the outcome, and why it did not work.

    `is_trial`: only ask whether that is allowed now. Nothing is kept for the asker: a budget may say yes to several."""
    namespace, _, name = pod.id.partition("/")
    options: Json = {"preconditions": {"uid": pod.uid}}
    query = None
    if is_trial:
        options["dryRun"] = ["All"]
        query = {"dryRun": "All"}  # this one is for webhooks
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": options,
    }
    try:
        await client.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body, query)
    except (Conflict, NotFound) as error:
        return Written.STALE, str(error)
    except TooBusy as error:  # a PodDisruptionBudget answers so too, and names itself
        is_budget = "disruption budget" in str(error)
        return (Written.PROTECTED if is_budget else Written.BUSY), str(error)
    except (Outage, Rejected) as error:
        log.warning("pod %s was not evicted: %s", pod.id, error)
        in_doubt = isinstance(error, Outage) and error.may_have_worked
        return Written.FAILED if in_doubt else Written.REFUSED, str(error)
    return Written.DONE, ""
