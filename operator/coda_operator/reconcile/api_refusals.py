"""What a refusal of the API server means for a job, read from its status and message.

A policy, a quota and a server that is still starting all answer 403; only their messages differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final

from coda.errors import InvalidQuantity, Outage
from coda_kube.api.client import Rejected
from coda_kube.objects.quantities import milli_from_quantity

DENIED_S: Final = 600.0
"""Seconds for which a job must be denied before that is final, where the denial may pass. Our choice: a webhook whose
registry, vault or cache is away for a moment denies as it does for good."""


class Blame(Enum):
    """What to do about a refused pod."""

    TEMPLATE = "template"  # no retry helps: the template must be edited
    SURROUNDINGS = "surroundings"  # a quota, a service account: something else in the namespace must change first
    MOMENT = "moment"  # nothing was judged: try again soon


_BAD_REQUESTS = (400, 413, 422)
_QUOTA = "exceeded quota"
QUOTA_EXCEEDED = "QuotaExceeded"
_NO_QUOTA = "insufficient quota to "  # match these scopes, or consume: the API server asks for a quota that counts it
_SURROUNDINGS = {
    _QUOTA: QUOTA_EXCEEDED,
    _NO_QUOTA: "QuotaMissing",
    "status unknown for quota": "QuotaNotCounted",  # a new ResourceQuota
    "error looking up service account": "ServiceAccountMissing",  # in a new namespace it appears a moment later
    "no PriorityClass with name": "PriorityClassMissing",  # it may be applied with the job
    'pod rejected: RuntimeClass "': "RuntimeClassMissing",  # the GPU operator makes that of its driver
}
_MAY_PASS = re.compile(r'admission webhook ".*" denied the request|denied request: failed to configure', re.DOTALL)
"""A webhook's denial, whatever its status, and a policy whose parameters do not exist yet."""
_TOO_MANY_CORES = re.compile(
    r"maximum cpu usage per (Container|Pod) is ([^\s,]+), but (?:limit|request) is ([^\s,\]]+)"
)
_MOMENT = (
    "not yet ready to handle request",  # an admission plugin of an API server that has just started
    "because it is being terminated",  # the namespace: the job goes with it
)
_OWN_RIGHTS = re.compile(r'User "[^"]+" cannot \S+ resource "')
"""Of the operator itself: the authorizer has just started, or the installation is incomplete."""


class Denials:
    """Since when jobs are denied by what may pass, as this process saw it: the next operator counts from the start."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_by_uid: dict[str, tuple[int, float]] = {}  # the generation that is denied, and since when

    def is_final(self, uid: str, generation: int) -> bool:
        """Note that this generation of a job is denied; True once it has been for `DENIED_S` without a break."""
        denied, since_s = self._since_by_uid.get(uid, (generation, self._clock()))
        if denied != generation:
            since_s = self._clock()
        self._since_by_uid[uid] = generation, since_s
        return self._clock() - since_s >= DENIED_S

    def forget(self, uid: str) -> None:
        """The job is not denied."""
        self._since_by_uid.pop(uid, None)


def blame_for(refusal: Rejected | Outage) -> Blame:
    """Return what must change for the pod to be admitted. Source: messages of admission plugins, Kubernetes 1.36.

    That no quota counts a pod is said as an error of the server (500)."""
    said = str(refusal)
    if isinstance(refusal, Outage):
        return Blame.SURROUNDINGS if _NO_QUOTA in said else Blame.MOMENT
    if not refusal.is_judged:  # a proxy's answer; it may always find a large template too large
        return Blame.SURROUNDINGS if refusal.status == 413 else Blame.MOMENT
    if refusal.status in _BAD_REQUESTS:
        return Blame.TEMPLATE
    if refusal.status != 403 or any(sentence in said for sentence in _MOMENT) or _OWN_RIGHTS.search(said):
        return Blame.MOMENT
    return Blame.SURROUNDINGS if any(sentence in said for sentence in _SURROUNDINGS) else Blame.TEMPLATE


def may_pass(refusal: Rejected | Outage) -> bool:
    """True for a denial of the template that may end by itself: nobody but who denies it knows."""
    return _MAY_PASS.search(str(refusal)) is not None


def is_about_cores(refusal: str) -> bool:
    """True if a LimitRange refused a pod for how many cores it asks for."""
    return "cpu usage per" in refusal


def cores_allowed(refusal: str, cores: int) -> int:
    """Return with how many cores in its main container a LimitRange admits a pod that it refused with `cores`.

    0: with none. Source: `plugin/pkg/admission/limitranger`."""
    allowed = cores
    for kind, most, asked in _TOO_MANY_CORES.findall(refusal):
        try:
            most_m, asked_m = milli_from_quantity(most), milli_from_quantity(asked)
        except InvalidQuantity:
            return 0
        if kind == "Container" and asked_m != cores * 1000:
            return 0  # another container asks for too many
        allowed = min(allowed, (cores * 1000 - (asked_m - most_m)) // 1000)
    return max(0, allowed)


def reason_to_wait(refusal: Rejected | Outage) -> str:
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
