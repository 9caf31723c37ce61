"""The ConfigMap of run times: the operator writes it, and the planner, which has no database, reads it.

`runTimes` are the groups of `coda.history.run_groups`, largest first; `usage` is what each owner used in the last week;
`division` is what the division between the arrays follows. All are JSON, and bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

import orjson

from coda.errors import InvalidInput
from coda.history import Account, RunGroup
from coda.history.division import CategoryUse, PastUse
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import SYSTEM_NAMESPACE

NAME: Final = "coda-run-times"
PATH: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/{NAME}"
MOST_CORES_PER_GPU: Final = 1024.0  # as an ArrayQuota allows
MOST_ACCOUNTS: Final = 1000
TABLE_BYTES: Final = 400_000
"""Bounds of the map. The API server takes 1 MiB in all; 1000 groups, or accounts, of owners with names of 60 characters
take about 200 KB. Our choice."""


def map_json(groups: Iterable[RunGroup], used: Iterable[Account], past: PastUse | None = None) -> Json:
    """Return the ConfigMap. Times are whole seconds, which is as exact as quantiles are.

    Of `groups` the first are kept, as many as fit; of `used` those with the most GPU-time."""
    largest = sorted(used, key=lambda it: (-it.gpu_s, it.owner, it.replicas, it.gpus_per_replica))[:MOST_ACCOUNTS]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": NAME,
            "namespace": SYSTEM_NAMESPACE,
            "labels": {"app.kubernetes.io/name": "coda", "app.kubernetes.io/component": "run-times"},
        },
        "data": {
            "runTimes": _text([_group_json(group) for group in groups]),
            "usage": _text([_account_json(account) for account in largest]),
            "division": orjson.dumps(_past_json(past or PastUse())).decode(),
        },
    }


def groups_from_json(item: Json) -> tuple[RunGroup, ...]:
    """Return the groups of the ConfigMap. Raises InvalidInput for one that somebody else has written."""
    try:
        return tuple([_group(group) for group in orjson.loads(item["data"]["runTimes"])])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"ConfigMap {NAME} has no run times as the operator writes them: delete it") from error


def past_use_from_json(item: Json) -> PastUse:
    """Return what the division follows; nothing where an older operator wrote the map. Raises InvalidInput."""
    text = (item.get("data") or {}).get("division")
    if not text:
        return PastUse()
    try:
        past = orjson.loads(text)
        return PastUse(
            jobs=int(past["jobs"]),
            tuned_jobs=int(past["tunedJobs"]),
            cores_per_gpu=_within(past["coresPerGPU"], MOST_CORES_PER_GPU),
            large_share=_within(past["largeShare"], 1.0),
            categories=tuple(
                [CategoryUse(str(one["category"]), int(one["jobs"]), float(one["coresPerGPU"])) for one in past["use"]]
            ),
            cpu_jobs=int(past.get("cpuJobs", 0)),  # an older operator says nothing of them
            cpu_wanted_share=_within(past.get("cpuWantedShare"), 1.0),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"ConfigMap {NAME} has no division as the operator writes it: delete it") from error


def _within(value: float | None, most: float) -> float | None:
    """Raises ValueError for what no cluster uses: a division must not follow it."""
    if value is None:
        return None
    if not 0 <= float(value) <= most:
        raise ValueError("out of range")
    return float(value)


def _past_json(past: PastUse) -> dict[str, Any]:
    return {
        "jobs": past.jobs,
        "tunedJobs": past.tuned_jobs,
        "coresPerGPU": None if past.cores_per_gpu is None else round(past.cores_per_gpu, 2),
        "largeShare": None if past.large_share is None else round(past.large_share, 3),
        "cpuJobs": past.cpu_jobs,
        "cpuWantedShare": None if past.cpu_wanted_share is None else round(past.cpu_wanted_share, 3),
        "use": [
            {"category": one.category, "jobs": one.jobs, "coresPerGPU": round(one.cores_per_gpu, 2)}
            for one in past.categories
        ],
    }


def _group(item: Json) -> RunGroup:
    """Raises ValueError for a group that stands for nobody: its weight would be none, or negative."""
    if int(item["jobs"]) < 1 or not item["runSeconds"]:
        raise ValueError("a group has jobs, and run times")
    return RunGroup(
        owner=str(item["owner"]),
        category=str(item["category"]),
        gpus=int(item["gpus"]),
        jobs=int(item["jobs"]),
        run_s=tuple([float(run_s) for run_s in item["runSeconds"]]),
    )


def _group_json(group: RunGroup) -> dict[str, Any]:
    named = {"owner": group.owner, "category": group.category, "gpus": group.gpus, "jobs": group.jobs}
    return named | {"runSeconds": [round(run_s) for run_s in group.run_s]}


def _account_json(account: Account) -> dict[str, Any]:
    return {name: round(value) if isinstance(value, float) else value for name, value in asdict(account).items()}


def _text(rows: list[dict[str, Any]]) -> str:
    """The first of these, as many as fit, as JSON of `TABLE_BYTES` at most."""
    texts: list[bytes] = []
    left = TABLE_BYTES - len(b"[]")
    for row in rows:
        text = orjson.dumps(row)
        left -= len(text) + len(b",")
        if left < 0:
            break
        texts.append(text)
    return (b"[" + b",".join(texts) + b"]").decode()
