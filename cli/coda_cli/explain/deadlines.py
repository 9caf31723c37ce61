"""When the Job of waiting pods is ended: Kubernetes counts its activeDeadlineSeconds while they wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from urllib.parse import quote

from coda_cli.explain.waiting import Waiting
from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time

_BATCH_JOB: Final = "job"


async def with_deadline(client: Client, line: Waiting) -> Waiting:
    """Return the line with the time at which its Job is ended. Without one, or the right to read it: as it is."""
    namespace, _, owner = line.name.partition("/")
    kind, _, name = owner.partition("/")
    if kind != _BATCH_JOB or not line.pods:
        return line
    try:
        job = await client.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{quote(name, safe='')}")
    except Rejected:
        return line
    return replace(line, ends_s=ends_s(job))


def ends_s(job: Json) -> float:
    """When a Job that does not end before fails with DeadlineExceeded, in seconds since 1970; 0: never.

    A suspended Job has no start time. Source: the Job API, `activeDeadlineSeconds`."""
    limit_s = (job.get("spec") or {}).get("activeDeadlineSeconds")
    start_s = seconds_from_time((job.get("status") or {}).get("startTime"))
    return start_s + float(limit_s) if limit_s is not None and start_s else 0.0
