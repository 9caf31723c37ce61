"""Which last-level caches share memory controllers. Counters and limits are per cache, contention is per controller.

On Intel a cache is a socket. On AMD it is a few cores: one alone draws far more than an equal part of the socket's
bandwidth, and a part of the socket can be far below it while the memory is saturated. Caches whose CPUs are in one NUMA
node share its controllers; NUMA nodes behind one cache (sub-NUMA clustering) cannot be told apart. AMD's firmware can
make a NUMA node of every cache ("L3 cache as NUMA domain"). Those at distance 11 then share controllers, those at 12
(nodes per socket) do not. A set of caches is called a *socket* and has the number of its first cache.
Source: `resctrl.rst`, AMD64 APM volume 2 (QoS domains). The distances are from memory: neither a document nor a
machine was at hand (`docs/decisions/0061`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations

from coda_agent.host import Files
from coda_agent.resctrl import MemoryTraffic, domain_by_cpu
from coda_agent.resctrl.probe import Abilities, limits_by_domain

NODES = "devices/system/node"
SAME_MEMORY = 11
"""The most that two nodes of one processor are apart which have the same controllers, on AMD."""

OTHER_MEMORY = 12
"""How far two nodes of one AMD processor are apart that have controllers of their own."""

NOT_TOLD = "each cache is a NUMA node, and which share memory controllers is not told: each counts as a socket"
_NODE = re.compile(r"node[0-9]{1,6}")
_SPAN = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumaNode:
    """One NUMA node with CPUs. `caches`: theirs. `distances`: to all nodes, by number; empty if not told."""

    number: int
    caches: frozenset[int]
    package: str
    distances: Mapping[int, int]


def socket_by_domain(files: Files, domains: Collection[int]) -> Mapping[int, int]:
    """Return the socket of every cache; itself where no NUMA nodes can be read."""
    nodes = _read_nodes(files, domains)
    pairs = [one.caches | other.caches for one, other in _pairs_with_a_cache_each(nodes) if _share_memory(one, other)]
    groups = [{domain} for domain in sorted(domains)]
    for here in (*(node.caches for node in nodes), *pairs):
        joined = [group for group in groups if group & here]
        groups = [group for group in groups if not group & here]
        groups += [set().union(*joined)] if joined else []
    return {domain: min(group) for group in groups for domain in sorted(group)}


def controllers_lacks(files: Files, domains: Collection[int]) -> tuple[str, ...]:
    """Return one sentence where every cache is a NUMA node, and nothing tells if their memory is one."""
    pairs = _pairs_with_a_cache_each(_read_nodes(files, domains))
    return (NOT_TOLD,) if any(_share_memory(one, other) is None for one, other in pairs) else ()


def _pairs_with_a_cache_each(nodes: Collection[_NumaNode]) -> list[tuple[_NumaNode, _NumaNode]]:
    """The pairs of nodes of one processor that have exactly one cache each, and not the same."""
    lone = [node for node in nodes if len(node.caches) == 1 and node.package]
    return [(a, b) for a, b in combinations(lone, 2) if a.package == b.package and a.caches != b.caches]


def _share_memory(one: _NumaNode, other: _NumaNode) -> bool | None:
    """True if two nodes have the same controllers; None if nothing tells."""
    distance = one.distances.get(other.number)
    return None if distance is None or distance > OTHER_MEMORY else distance <= SAME_MEMORY


def domains_by_socket(socket_by: Mapping[int, int]) -> Mapping[int, tuple[int, ...]]:
    """Return the caches of every socket, in order."""
    sockets = sorted(set(socket_by.values()))
    return {socket: tuple(sorted(one for one in socket_by if socket_by[one] == socket)) for socket in sockets}


def by_socket(rates: Mapping[int, float | None], socket_by: Mapping[int, int]) -> Mapping[int, float | None]:
    """Return the sum of rates over the caches of each socket; None if one of them has no sample."""
    sums: dict[int, float | None] = {}
    for domain, rate in rates.items():
        socket = socket_by.get(domain, domain)
        before = sums.get(socket, 0.0)
        sums[socket] = None if rate is None or before is None else before + rate
    return sums


def traffic_by_socket(traffic: MemoryTraffic, socket_by: Mapping[int, int]) -> MemoryTraffic:
    """Return `traffic` by socket."""
    if all(domain == socket for domain, socket in socket_by.items()):
        return traffic
    return MemoryTraffic(
        by_pod={uid: by_socket(rates, socket_by) for uid, rates in traffic.by_pod.items()},
        totals=by_socket(traffic.totals, socket_by),
        uncounted=traffic.uncounted,
    )


def limits_by_socket(
    abilities: Abilities, peak_bytes_per_s: Mapping[int, float], socket_by: Mapping[int, int]
) -> Mapping[int, tuple[int, ...]]:
    """Return `coda.contention.throttles.Hardware.limits`: each value is set in every cache of the socket.

    Absolute limits are parts of the cache's equal share of the socket's peak."""
    caches = domains_by_socket(socket_by)
    shares = {socket: peak / len(caches.get(socket, (socket,))) for socket, peak in peak_bytes_per_s.items()}
    return limits_by_domain(abilities, shares)


def _read_nodes(files: Files, domains: Collection[int]) -> list[_NumaNode]:
    domain_of = domain_by_cpu(files)
    try:
        numbers = sorted(int(name[4:]) for name in files.sys.listdir(NODES) if _NODE.fullmatch(name))
        texts = [files.sys.read_text(f"{NODES}/node{number}/cpulist", most_bytes=1 << 16) for number in numbers]
    except OSError:
        return []
    found: list[_NumaNode] = []
    for number, cpus in zip(numbers, map(cpus_from, texts), strict=True):
        caches = frozenset(domain_of[cpu] for cpu in cpus if cpu in domain_of) & frozenset(domains)
        words = _text(files, f"{NODES}/node{number}/distance").split()
        distances = [int(word) for word in words if word.isdecimal()]
        package = _text(files, f"devices/system/cpu/cpu{min(cpus, default=0)}/topology/physical_package_id").strip()
        by_number = dict(zip(numbers, distances, strict=True)) if len(distances) == len(numbers) else {}
        found.append(_NumaNode(number=number, caches=caches, package=package, distances=by_number))
    return found


def _text(files: Files, path: str) -> str:
    try:
        return files.sys.read_text(path, most_bytes=1 << 16)
    except OSError:
        return ""


def cpus_from(text: str) -> frozenset[int]:
    """Return the CPUs of the kernel's list, such as `0-3,8`; what is no number or span is left out."""
    spans = [match for part in text.strip().split(",") if (match := _SPAN.fullmatch(part))]
    return frozenset(cpu for span in spans for cpu in range(int(span[1]), int(span[2] or span[1]) + 1))
