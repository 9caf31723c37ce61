"""Evicts a pod as disruption budgets allow: its owner makes it anew, and need not count it as a failure."""

from __future__ import annotations

import logging

from coda.errors import Conflict, Outage
from coda_extender.written import Written
from coda_kube.api.client import Client, NotFound, Rejected, TooBusy
from coda_kube.objects.read import Pod

log = logging.getLogger(__name__)


async def evict(client: Client, pod: Pod) -> tuple[Written, str]:
    """Evict this pod, and no later one of its name. Returns the outcome, and why it did not work."""
    namespace, _, name = pod.id.partition("/")
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
    try:
        await client.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
    except (Conflict, NotFound) as error:
        return Written.STALE, str(error)
    except TooBusy as error:  # a PodDisruptionBudget answers so too, and names itself
        is_budget = "disruption budget" in str(error)
        return (Written.REFUSED if is_budget else Written.BUSY), str(error)
    except (Outage, Rejected) as error:
        log.warning("pod %s was not evicted: %s", pod.id, error)
        in_doubt = isinstance(error, Outage) and error.may_have_worked
        return Written.FAILED if in_doubt else Written.REFUSED, str(error)
    return Written.DONE, ""
