"""What is kept of the objects of a large cluster says the same as the whole ones."""

from __future__ import annotations

import copy

import orjson

from coda_cli.explain.waiting import part_of_event, part_of_job, part_of_waiting_pod, queue_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER, GATE
from tests.extender.objects import job_json, placement, pod_json

NOTES = {ANNOTATION_USER: "ann"} | {f"example.com/{number}": "x" * 100 for number in range(100)}
SINCE = "2026-11-23T00:00:00Z"


def job(name: str, **status: object) -> Json:
    item = job_json(name, **status)  # type: ignore[arg-type]
    item["metadata"] |= {"namespace": "default", "annotations": NOTES}
    item["spec"]["template"] = {"spec": {"containers": [{"env": [{"name": "A", "value": "x" * 10_000}]}]}}
    return item


def pod(name: str, *, gates: tuple[str, ...] = (GATE,)) -> Json:
    owner = {"kind": "Job", "name": "a", "uid": "u", "controller": True}
    metadata = {"creationTimestamp": SINCE, "ownerReferences": [owner], "annotations": NOTES}
    spec = {"schedulingGates": [{"name": gate} for gate in gates], "priority": 5, "overhead": {"cpu": "1"}}
    item = pod_json(name, cpu="2", metadata=metadata, spec=spec)
    item["spec"]["initContainers"] = [
        {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "3"}}},
        {"name": "once", "resources": {"requests": {"memory": "1Gi"}}},
    ]
    item["spec"]["containers"][0] |= {"ports": [{"hostPort": 80}], "env": [{"name": "A", "value": "x" * 10_000}]}
    return item


def event(reason: str, at: str) -> Json:
    about = {"kind": "Job", "name": "a"}
    metadata = {"namespace": "default", "name": f"a.{at}", "annotations": NOTES}
    more = {"reason": reason, "message": f"waits: {at} (pods 2)", "eventTime": at}
    return {"metadata": metadata, "involvedObject": about, **more}


def test_the_queue_is_the_same_and_little_is_kept() -> None:
    stop = {"cause": "Promise", "by": "default/next", "time": SINCE}
    jobs = [
        job("waits", pending={"code": "InsufficientGPUs", "message": "needs 8", "holders": ["default/x"]}),
        job("next", placement=placement("n1"), waitingSince=SINCE, notBefore=SINCE),
        job("leaves", phase="Running", placement=placement("n1") | {"stop": stop}, stopDeadline=SINCE),
    ]
    pods = [pod("a-1"), pod("a-2", gates=("mine", GATE)), pod("b", gates=("mine",)), pod("c", gates=())]
    events = [event("InsufficientCPU", "2026"), event("InsufficientGPUs", "2027"), event("Reclaimed", "2028")]
    wanted = queue_of(copy.deepcopy(jobs), copy.deepcopy(pods), copy.deepcopy(events))
    kept = (
        [part_of_job(one) for one in jobs],
        [part for one in pods if (part := part_of_waiting_pod(one)) is not None],
        [part for one in events if (part := part_of_event(one)) is not None],
    )
    assert queue_of(*kept) == wanted
    assert {line.name for line in wanted} == {"default/waits", "default/next", "default/job/a"}
    assert [len(parts) for parts in kept] == [3, 2, 2]
    assert max(len(orjson.dumps(part)) for parts in kept for part in parts) < 1500
