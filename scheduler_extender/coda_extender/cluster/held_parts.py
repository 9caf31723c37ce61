"""What a replica holds of a pod once it was read: what is read of it later, and nothing else.

A whole pod takes 36 KiB, and there are 100,000 in a large cluster. Of an earlier state `InFlightPods` reads what
kube-scheduler said, and `DaemonGaps` which DaemonSet made the pod and where it may go. Of a CPU job its writers read
more.
"""

from __future__ import annotations

from typing import Final

from coda_extender.cluster.daemon_gaps import daemon_set_of
from coda_kube.api.watch_cache import metadata_only
from coda_kube.objects.json_types import Json

_OF_A_DAEMON: Final = ("affinity", "nodeSelector", "tolerations")
_OF_A_CPU_JOB: Final = ("affinity",)  # its release writes the user's again, with the pin


def part_of_pod(pod: Json, *, is_cpu_job: bool) -> Json:
    """Return the part of a pod that listeners read as the old state, and of a CPU job what is read of it at any time.

    Strings and values are those of `pod`."""
    part = metadata_only(pod)
    if said := _said(pod):
        part["status"] = {"conditions": [said]}
    if is_cpu_job or daemon_set_of(pod):
        metadata, spec = pod["metadata"], pod["spec"]
        fields = _OF_A_CPU_JOB if is_cpu_job else _OF_A_DAEMON
        part["spec"] = {name: spec[name] for name in fields if name in spec}
        for name in ("ownerReferences", "deletionTimestamp"):
            if name in metadata:
                part["metadata"][name] = metadata[name]
    return part


def _said(pod: Json) -> Json | None:
    """What kube-scheduler said of a pod that it did not bind. Who is bound is none of those."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled":
            return None if condition.get("status") == "True" else condition
    return None
