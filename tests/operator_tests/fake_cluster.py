"""The API server in memory with what the operator relies on besides: generations, finalizers, graceful deletion of
pods, dry runs, garbage collection by owner, and refusals on demand."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

from coda_kube.api.client import MERGE
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, KIND
from coda_kube.objects.quantities import time_from_seconds
from tests.extender.fake_api import FakeApi

STARTED_S = 1_700_000_000.0
JOBS = f"/apis/{API_VERSION}/namespaces/default/trainingjobs"
PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/coda-system/leases/coda-planner"
NODES = "/api/v1/nodes"


def clock() -> float:
    """The time everywhere in the fake cluster: the loop's."""
    return STARTED_S + asyncio.get_running_loop().time()


class FakeCluster(FakeApi):
    """`admit` sees each pod that is created (dry runs too, without a name), `admit_resize` each path and body of a
    resize; both may raise what an API server would."""

    def __init__(self) -> None:
        super().__init__()
        self.admit: Callable[[Json], None] = lambda pod: None
        self.admit_resize: Callable[[str, Json], None] = lambda path, body: None
        self.log_of: Callable[[str], bytes] = lambda pod: b""  # by the pod's name; raises what an API server would

    # --- what a user does --------------------------------------------------------------------------------------------

    def submit(self, name: str = "job", **spec: Any) -> str:
        """Create a TrainingJob with the CRD's defaults; its path."""
        defaults = {
            "replicas": 2,
            "gpusPerReplica": 8,
            "cpusPerReplica": 4,
            "retries": 3,
            "successPolicy": "AllRanks",
            "startDeadlineSeconds": 1800,
            "suspend": False,
            "template": {"spec": {"containers": [{"name": "main", "image": "train:1"}]}},
        }
        metadata = {"name": name, "generation": 1, "creationTimestamp": time_from_seconds(clock())}
        self.set(JOBS, {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": defaults | spec})
        return f"{JOBS}/{name}"

    def edit(self, path: str, **spec: Any) -> None:
        """Change a job's spec."""

        def change(job: Json) -> None:
            job["spec"] |= spec
            job["metadata"]["generation"] += 1

        self.change(path, change)

    def status(self, path: str) -> Json:
        """The status of a job now."""
        return dict(self.item(path).get("status") or {})

    def all(self, plural: str) -> list[Json]:
        """All objects of a kind, by name."""
        return [copy.deepcopy(item) for key, item in sorted(self._items.items()) if key[0] == plural]

    def pods(self) -> dict[str, Json]:
        """All pods, by name."""
        return {pod["metadata"]["name"]: pod for pod in self.all("pods")}

    def exists(self, path: str) -> bool:
        return self._key(path) in self._items

    def history(self, plural: str) -> list[tuple[str, Json]]:
        """Every change of these objects so far, in order."""
        return [(event, item) for _, event, key, item in self._log if key[0] == plural]

    # --- Client ------------------------------------------------------------------------------------------------------

    async def create(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        if self._key(path)[0] != "pods":
            return await super().create(path, body, query)
        pod = copy.deepcopy(body)
        pod["metadata"]["creationTimestamp"] = time_from_seconds(clock())
        pod.setdefault("status", {"phase": "Pending"})
        if (query or {}).get("dryRun"):
            await self._enter("dry run", path, body)
            self.admit(pod)
            return pod
        await asyncio.sleep(0)
        self.admit(pod)
        return await super().create(path, pod, query)

    async def patch(self, path: str, body: Any, content_type: str = MERGE) -> Json:
        if path.endswith("/resize"):
            return await self._resize(path.removesuffix("/resize"), body)
        answer = await super().patch(path, body, content_type)
        self.collect(path)
        return answer

    async def delete(self, path: str, *, uid: str | None = None, grace_s: int | None = None) -> None:
        await self._enter("delete", path, None)
        if self.exists(path) and uid in (None, self.item(path)["metadata"]["uid"]):
            self.end(path, grace_s=grace_s)

    async def tail(self, path: str, query: Mapping[str, str], *, keep_bytes: int, limit_s: float) -> bytes:
        await self._enter("get", path, None)
        return self.log_of(path.removesuffix("/log").rpartition("/")[2])[-keep_bytes:]

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _resize(self, path: str, body: Json) -> Json:
        """The subresource: containers merge by name, and every change is a new generation."""
        await self._enter("patch", f"{path}/resize", body)
        self._check(path, body["metadata"])
        self.admit_resize(path, body)

        def change(pod: Json) -> None:
            for wanted in body["spec"]["containers"]:
                (container,) = [each for each in pod["spec"]["containers"] if each["name"] == wanted["name"]]
                for kind, amounts in wanted["resources"].items():
                    container["resources"][kind] |= amounts
            pod["metadata"]["generation"] = pod["metadata"].get("generation", 1) + 1

        return copy.deepcopy(self.change(path, change))

    def end(self, path: str, *, grace_s: int | None = None) -> None:
        """Ask for a deletion: at once, or when the finalizers are lifted and the kubelet has let the pod go."""
        item = self.item(path)
        bound = bool((item.get("spec") or {}).get("nodeName"))
        own_s = (item.get("spec") or {}).get("terminationGracePeriodSeconds", 30)
        left_s = item["metadata"].get("deletionGracePeriodSeconds", math.inf)
        is_shortened = "deletionTimestamp" in item["metadata"] and grace_s is not None and grace_s < left_s
        grace_s = own_s if grace_s is None else grace_s
        if "deletionTimestamp" not in item["metadata"] or is_shortened:
            seconds = grace_s if bound else 0
            stamp = {"deletionTimestamp": time_from_seconds(clock() + seconds), "deletionGracePeriodSeconds": seconds}
            self.change(path, lambda found: found["metadata"].update(stamp))
        if not bound or not grace_s:
            self.collect(path, at_once=True)

    def collect(self, path: str, *, at_once: bool = False) -> None:
        """Remove what is being deleted and held by nothing, and what it owned."""
        item = self.item(path)
        if "deletionTimestamp" not in item["metadata"] or item["metadata"].get("finalizers"):
            return
        if (item.get("spec") or {}).get("nodeName") and not (item["metadata"].get("stopped") or at_once):
            return  # its kubelet has to say that it has stopped
        self.remove(path)
        for pod in self.all("pods"):
            if any(owner["uid"] == item["metadata"]["uid"] for owner in pod["metadata"].get("ownerReferences") or ()):
                self.end(f"{PODS}/{pod['metadata']['name']}")
