"""Evicts a pod as disruption budgets allow: its owner makes it anew, and need not count it as a failure."""

from __future__ import annotations

import logging
from typing import Final

from coda.errors import Conflict, Outage
from coda_extender.written import Written
from coda_kube.api.client import Client, NotFound, Rejected, TooBusy
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.cpu_job import LONGEST_GRACE_S
from coda_kube.objects.read import Pod

log = logging.getLogger(__name__)

BUDGET_CAUSE: Final = "DisruptionBudget"


async def evict(client: Client, pod: Pod, *, is_trial: bool = False, version: str | None = None) -> tuple[Written, str]:
    """Evict this pod, and no later one of its name. Returns the outcome, and why it did not work.

    It has as long to end as its spec says, and `LONGEST_GRACE_S` at most. `version`: only at this resourceVersion.
    `is_trial`: only ask whether that is allowed now. Nothing is kept for the asker: a budget may say yes to several."""
    namespace, _, name = pod.id.partition("/")
    options: Json = {"preconditions": {"uid": pod.uid}}
    if pod.cpu_job is not None:
        # Also for a pod that ends already: whoever deleted it may have given it hours. Never 0, which would free its
        # cores before the kubelet has stopped it.
        options["gracePeriodSeconds"] = int(max(1.0, min(pod.cpu_job.grace_s, LONGEST_GRACE_S)))
    if version is not None:
        options["preconditions"]["resourceVersion"] = version
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
    except (Outage, Rejected) as error:
        written = _outcome(error)
        if written in (Written.REFUSED, Written.FAILED):
            log.warning("pod %s was not evicted: %s", pod.id, error)
        return written, str(error)
    return Written.DONE, ""


def _outcome(error: Outage | Rejected) -> Written:
    if _is_of_a_budget(error):
        return Written.PROTECTED
    if isinstance(error, TooBusy):
        return Written.BUSY
    return Written.FAILED if isinstance(error, Outage) and error.may_have_worked else Written.REFUSED


def _is_of_a_budget(error: Outage | Rejected) -> bool:
    """True if a PodDisruptionBudget refuses. Nothing was evicted then, whatever the HTTP status.

    A budget that is used up gives its cause. Two budgets for one pod (500), one that is changed all the time (504) and
    one whose count is wrong (403) are known by their words alone. Source: eviction.go of Kubernetes 1.36."""
    if isinstance(error, TooBusy) and BUDGET_CAUSE in error.causes:
        return True
    text = str(error).lower()
    is_answer = isinstance(error, Rejected) or text.startswith("http ")  # else it names the path of the request
    return is_answer and ("disruption budget" in text or "poddisruptionbudget" in text)
