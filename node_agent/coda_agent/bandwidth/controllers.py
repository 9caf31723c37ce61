"""Which last-level caches share memory controllers. Counters and limits are per cache, contention is per controller.

On Intel a cache is a socket. On AMD it is a few cores: one alone draws far more than an equal part of the socket's
bandwidth, and a part of the socket can be far below it while the memory is saturated. Caches whose CPUs are in one NUMA
node share its controllers; NUMA nodes behind one cache (sub-NUMA clustering) cannot be told apart. A set of caches is
called a *socket* and has the number of its first cache. Source: `resctrl.rst`, AMD64 APM volume 2 (QoS domains)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from coda_agent.host import Files
from coda_agent.resctrl import MemoryTraffic, domain_by_cpu
from coda_agent.resctrl.probe import Abilities, limits_by_domain

NODES = "devices/system/node"
_NODE = re.compile(r"node[0-9]{1,6}")
_SPAN = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def socket_by_domain(files: Files, domains: Collection[int]) -> Mapping[int, int]:
    """Return the socket of every cache; itself where no NUMA nodes can be read."""
    domain_of = domain_by_cpu(files)
    groups = [{domain} for domain in sorted(domains)]
    for cpus in _cpus_of_nodes(files):
        here = {domain_of[cpu] for cpu in cpus if cpu in domain_of} & set(domains)
        joined = [group for group in groups if group & here]
        groups = [group for group in groups if not group & here]
        groups += [set().union(*joined)] if joined else []
    return {domain: min(group) for group in groups for domain in sorted(group)}


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


def _cpus_of_nodes(files: Files) -> list[frozenset[int]]:
    try:
        names = [name for name in files.sys.listdir(NODES) if _NODE.fullmatch(name)]
        texts = [files.sys.read_text(f"{NODES}/{name}/cpulist", most_bytes=1 << 16) for name in names]
    except OSError:
        return []
    return [cpus_from(text) for text in texts]


def cpus_from(text: str) -> frozenset[int]:
    """Return the CPUs of the kernel's list, such as `0-3,8`; what is no number or span is left out."""
    spans = [match for part in text.strip().split(",") if (match := _SPAN.fullmatch(part))]
    return frozenset(cpu for span in spans for cpu in range(int(span[1]), int(span[2] or span[1]) + 1))
