"""The pods of one simulated node's machine: those that its kubelet calls running, with the limits it reports.

Reads objects, and changes the machine accordingly. Watching, time and sockets are elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

from coda.errors import InvalidInput
from coda_kube.objects.names import GPU
from coda_kube.objects.quantities import milli_from_quantity, whole_from_quantity
from coda_lab.emulators.cgroups.kubelet import Quality
from coda_lab.emulators.load import Gpus
from coda_lab.emulators.node import MAIN, NAMES, EmulatedNode, Work
from coda_lab.machines.pod_loads import PodLoad, load_of

log = logging.getLogger(__name__)

Json = Mapping[str, Any]

QUALITY_BY_NAME = {name: quality for quality, name in NAMES.items()}


class Host:
    """The pods of one machine. Only a pod's first container does anything; the others idle."""

    def __init__(self, machine: EmulatedNode) -> None:
        self.machine = machine
        self._version: dict[str, tuple[str, str]] = {}  # by pod uid: its resourceVersion, its job's category
        self._load: dict[str, PodLoad] = {}

    def follow(self, pods: Iterable[Json], category_by_job: Mapping[str, str]) -> bool:
        """Make the machine have exactly the running ones among `pods`. Return whether any came, went or changed.

        `category_by_job` (namespace/name): pods of jobs that are not in it wait.
        """
        running = {pod["metadata"]["uid"]: pod for pod in pods if _runs(pod)}
        gone = self._version.keys() - running.keys()
        for uid in gone:
            self.machine.stop(self.machine.works[uid])
            del self._version[uid], self._load[uid]
        changed = [self._see(uid, pod, category_by_job) for uid, pod in running.items()]
        return bool(gone) or any(changed)

    def _see(self, uid: str, pod: Json, category_by_job: Mapping[str, str]) -> bool:
        category = _category(pod, category_by_job)
        if category is None:
            return False
        version = str(pod["metadata"]["resourceVersion"]), category
        if self._version.get(uid) == version:
            return False
        load = self._load_of(pod, category)
        if uid in self._version:
            self._resize(uid, _limit_cores(pod))
            self._change(self.machine.works[uid], load)
        else:
            self._start(pod, load)
        self._raise_xid(self.machine.works[uid], load, self._load.get(uid))
        self._version[uid], self._load[uid] = version, load
        return True

    def _load_of(self, pod: Json, category: str) -> PodLoad:
        limit, notes = _limit_cores(pod), pod["metadata"].get("annotations") or {}
        try:
            return load_of(notes, gpus=_gpus(pod), limit_cores=limit, category=category)
        except InvalidInput as error:
            log.error("%s/%s: %s; it has the usual load", pod["metadata"]["namespace"], pod["metadata"]["name"], error)
            return load_of({}, gpus=_gpus(pod), limit_cores=limit, category=category)

    def _start(self, pod: Json, load: PodLoad) -> None:
        metadata = pod["metadata"]
        work = Work(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            domain=self._domain(load),
            demand_cores=load.demand_cores,
            bytes_per_s=load.bytes_per_s,
            quality=QUALITY_BY_NAME.get((pod.get("status") or {}).get("qosClass", ""), Quality.BEST_EFFORT),
            gpus=_answers(load, metadata["uid"]),
        )
        self.machine.run(work, cores=_limit_cores(pod), gpus=_gpus(pod))

    def _change(self, work: Work, load: PodLoad) -> None:
        before = self._load[work.uid]
        if load == before:
            return
        work.demand_cores, work.bytes_per_s, work.domain = load.demand_cores, load.bytes_per_s, self._domain(load)
        if load.trainer != before.trainer:
            work.gpus = _answers(load, work.uid)
        self.machine.demand(work)

    def _raise_xid(self, work: Work, load: PodLoad, before: PodLoad | None) -> None:
        if load.xid is not None and work.devices and (before is None or before.xid != load.xid):
            self.machine.state.raise_xid(work.devices[0], load.xid)

    def _resize(self, uid: str, cores: float | None) -> None:
        has = self.machine.kubelet.pods[uid].containers[MAIN].cores
        if cores is not None and has is not None and cores != has:
            self.machine.kubelet.resize(uid, MAIN, cores)

    def _domain(self, load: PodLoad) -> int:
        domains = self.machine.machine.profile.domains
        return load.socket if load.socket in domains else domains[0]


def _runs(pod: Json) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Running")


def _category(pod: Json, category_by_job: Mapping[str, str]) -> str | None:
    """The category of a pod's job. Empty: none, or not a job's pod; None: its job is not known yet."""
    owners = (owner for owner in pod["metadata"].get("ownerReferences") or () if owner["kind"] == "TrainingJob")
    job = next(owners, None)
    return "" if job is None else category_by_job.get(f"{pod['metadata']['namespace']}/{job['name']}")


def _answers(load: PodLoad, uid: str) -> Gpus | None:
    return None if load.trainer is None else Gpus(load.trainer, seed=crc32(uid.encode()))


def _main(pod: Json) -> Json:
    main: Json = pod["spec"]["containers"][0]
    return main


def _gpus(pod: Json) -> int:
    return whole_from_quantity(((_main(pod).get("resources") or {}).get("limits") or {}).get(GPU, "0"))


def _limit_cores(pod: Json) -> float | None:
    """The cores the kubelet reports for the first container, else its spec's; None: no limit."""
    main = _main(pod)
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    status: Json = next((one for one in statuses if one["name"] == main["name"]), {})
    resources = status.get("resources") or main.get("resources") or {}
    text = (resources.get("limits") or {}).get("cpu")
    return None if text is None else milli_from_quantity(text) / 1000
