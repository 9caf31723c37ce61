"""What a refusal of the API server means for a job, read from its status and message.

A policy, a quota and a server that is still starting all answer 403; only their messages differ.
"""

from __future__ import annotations

from enum import Enum

from coda_kube.api.client import Rejected


class Blame(Enum):
    """What to do about a refused pod."""

    TEMPLATE = "template"  # no retry helps: the template must be edited
    SURROUNDINGS = "surroundings"  # a quota, a service account: something else in the namespace must change first
    MOMENT = "moment"  # nothing was judged: try again soon


_BAD_REQUESTS = (400, 413, 422)
_QUOTA = "exceeded quota"
QUOTA_EXCEEDED = "QuotaExceeded"
_SURROUNDINGS = {
    _QUOTA: QUOTA_EXCEEDED,
    "status unknown for quota": "QuotaNotCounted",  # a new ResourceQuota
    "error looking up service account": "ServiceAccountMissing",  # in a new namespace it appears a moment later
}
_MOMENT = (
    "not yet ready to handle request",  # an admission plugin of an API server that has just started
    "because it is being terminated",  # the namespace: the job goes with it
    "cannot create resource",  # our own rights: the authorizer has just started, or the installation is incomplete
    "cannot patch resource",
)


def blame_for(refusal: Rejected) -> Blame:
    """Return what must change for the pod to be admitted. Source: messages of admission plugins, Kubernetes 1.36."""
    said = str(refusal)
    if refusal.status in _BAD_REQUESTS:
        return Blame.TEMPLATE
    if refusal.status != 403 or any(sentence in said for sentence in _MOMENT):
        return Blame.MOMENT
    return Blame.SURROUNDINGS if any(sentence in said for sentence in _SURROUNDINGS) else Blame.TEMPLATE


def reason_to_wait(refusal: Rejected) -> str:
    """Return one word for a job that is not accepted yet, for a refusal by its surroundings."""
    said = str(refusal)
    return next((reason for sentence, reason in _SURROUNDINGS.items() if sentence in said), "NotAdmitted")


def reason_for(refusal: Rejected) -> str:
    """Return one word for an attempt that ends because a pod was refused."""
    return QUOTA_EXCEEDED if _QUOTA in str(refusal) else "PodRefused"


def reason_for_resize(refusal: Rejected) -> str:
    """Return one word for a change of cores that the API server refused.

    Source: pod resize validation and the NodeDeclaredFeatures, LimitRanger and quota admission of Kubernetes 1.36."""
    said = str(refusal)
    if _QUOTA in said:
        return QUOTA_EXCEEDED
    if refusal.status == 404 or "without support for resize" in said:
        return "ResizeUnsupported"
    return "NodeTooSmall" if "enough allocatable resources" in said else "ResizeRefused"
