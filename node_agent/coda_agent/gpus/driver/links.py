"""How the node's GPUs are connected, for the node's profile: what each pair shares, and their NVLinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import combinations

from coda_agent.gpus.devices import Link, LinkPath
from coda_agent.gpus.driver import nvml
from coda_agent.gpus.driver.discovery import OpenDevice
from coda_agent.gpus.driver.nvml import NvmlFailure, optional


def find_links(devices: Mapping[str, OpenDevice]) -> tuple[Link, ...]:
    """Return every pair of `devices` (by UUID), in order. Pairs with a device that fails meanwhile are left out."""
    ends = {uuid: _ends(device) for uuid, device in devices.items()}
    bus_ids = {device.gpu.pci_bus_id for device in devices.values()}
    links: list[Link] = []
    for one, other in combinations(sorted(devices), 2):
        try:
            links.append(_link(devices[one], devices[other], ends, bus_ids))
        except NvmlFailure:
            continue
    return tuple(links)


def _ends(device: OpenDevice) -> Counter[str]:
    try:
        return Counter(nvml.nvlink_ends(device.handle))
    except NvmlFailure:
        return Counter()


def _link(one: OpenDevice, other: OpenDevice, ends: Mapping[str, Counter[str]], bus_ids: set[str]) -> Link:
    level = optional(partial(nvml.common_ancestor, one.handle, other.handle))
    direct = ends[one.gpu.uuid][other.gpu.pci_bus_id]
    switched = 0
    if not direct and optional(partial(nvml.is_linked_by_nvlink, one.handle, other.handle)):
        switched = min(_to_switches(ends[device.gpu.uuid], bus_ids) for device in (one, other))
    return Link(
        one=one.gpu.uuid,
        other=other.gpu.uuid,
        path=LinkPath(level) if level in {path.value for path in LinkPath} else None,
        nvlinks=direct or switched,
        is_switched=switched > 0,
    )


def _to_switches(ends: Counter[str], bus_ids: set[str]) -> int:
    return sum(count for bus_id, count in ends.items() if bus_id not in bus_ids)
