"""The GPUs that this node had, kept over restarts of agent and machine: what NVML does not list any more is LOST then.

Without it, a new process would know nothing of them: a node whose driver does not load would look like one without
GPUs, and nobody would be told."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from coda_agent.gpus.devices import Gpu, LibraryState, Snapshot, lost_reading
from coda_agent.host import StateDir

log = logging.getLogger(__name__)

PATIENCE_S: Final = 60.0
"""So long after its start the agent waits for NVML before it calls known GPUs lost. Our choice: at a start of the
machine the driver may be loaded after the agent."""
MOST: Final = 64
"""GPUs that are kept: as many as a NodeProfile may have."""
_NAME: Final = "gpus.json"
_MOST_BYTES: Final = 1 << 16


class KnownGpus:
    """GPUs that were listed here. One thread at a time; it never raises.

    A machine that was started since may have other GPUs: once NVML answers then, what it lists is all there is."""

    def __init__(self, state_dir: StateDir, *, boot: str, reads_only: bool) -> None:
        self._state_dir = state_dir
        self._boot = boot
        self._reads_only = reads_only
        self._kept_boot, self._gpus = self._load()  # in order of UUID
        self._started_at_s: float | None = None

    def completed(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with a LOST reading for each known GPU that it lacks, and keep what it lists."""
        if self._started_at_s is None:
            self._started_at_s = snapshot.at_s
        listed = {reading.gpu.uuid: reading.gpu for reading in snapshot.readings}
        if snapshot.library is LibraryState.READY:
            was_here = self._gpus if self._kept_boot == self._boot else ()
            missing = [gpu for gpu in was_here if gpu.uuid not in listed]
            self._keep((*listed.values(), *missing))
            why = "this node had {} before the agent started, and the driver does not list it"
        elif snapshot.at_s - self._started_at_s >= PATIENCE_S:
            missing = [gpu for gpu in self._gpus if gpu.uuid not in listed]
            why = f"this node has had {{}}, but {snapshot.why or 'NVML does not answer'}"
        else:
            return snapshot
        if not missing:
            return snapshot
        readings = [*snapshot.readings, *(lost_reading(gpu, why.format(gpu.uuid)) for gpu in missing)]
        return replace(snapshot, readings=tuple(sorted(readings, key=lambda reading: reading.gpu.uuid)))

    def _keep(self, gpus: Iterable[Gpu]) -> None:
        """Write the GPUs down if they have changed."""
        kept = tuple(sorted(map(_plain, gpus), key=lambda gpu: gpu.uuid))[:MOST]
        if (self._boot, kept) == (self._kept_boot, self._gpus):
            return
        self._kept_boot, self._gpus = self._boot, kept
        if self._reads_only:
            return
        content = {"boot": self._boot, "gpus": [_json(gpu) for gpu in kept]}
        try:
            self._state_dir.replace(_NAME, json.dumps(content).encode())
        except OSError as error:
            log.warning("the GPUs of this node are not kept over a restart: %s", error)

    def _load(self) -> tuple[str, tuple[Gpu, ...]]:
        try:
            kept = json.loads(self._state_dir.read(_NAME, most_bytes=_MOST_BYTES) or b'{"boot": "", "gpus": []}')
            gpus = sorted(map(_gpu_from_json, kept["gpus"]), key=lambda gpu: gpu.uuid)
            return str(kept["boot"]), tuple(gpus)[:MOST]
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("the GPUs that an earlier agent found cannot be read: %s", error)
            return "", ()


def _plain(gpu: Gpu) -> Gpu:
    """What is kept of a GPU. Slices and the CPUs near it may be others at the next start."""
    return replace(gpu, cpus=frozenset(), instances=())


def _json(gpu: Gpu) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "minor": gpu.minor,
        "name": gpu.name,
        "pci_bus_id": gpu.pci_bus_id,
        "memory_bytes": gpu.memory_bytes,
        "numa_nodes": sorted(gpu.numa_nodes),
        "mig": gpu.mig,
    }


def _gpu_from_json(kept: Any) -> Gpu:
    return Gpu(
        uuid=str(kept["uuid"]),
        index=int(kept["index"]),
        minor=None if kept["minor"] is None else int(kept["minor"]),
        name=str(kept["name"]),
        pci_bus_id=str(kept["pci_bus_id"]),
        memory_bytes=None if kept["memory_bytes"] is None else int(kept["memory_bytes"]),
        numa_nodes=frozenset(map(int, kept["numa_nodes"])),
        mig=bool(kept["mig"]),
    )
