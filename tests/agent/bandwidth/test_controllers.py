"""Which caches share memory controllers, and what that means for contention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from coda.contention import ContentionConfig
from coda.contention.measurements import bandwidth_shares
from coda_agent.bandwidth.controllers import (
    NOT_TOLD,
    by_socket,
    controllers_lacks,
    cpus_from,
    domains_by_socket,
    limits_by_socket,
    socket_by_domain,
    traffic_by_socket,
)
from coda_agent.bandwidth.peak import Peak, PeakSource, choose_peak, first_peak_after, raise_peak, settled_peak
from coda_agent.host.files import Files
from coda_agent.resctrl import Abilities, MemoryTraffic, Unit

GB = 1e9
TRIGGER = ContentionConfig().trigger_share
EPYC = {cpu: cpu // 8 for cpu in range(192)}  # two sockets of 12 complexes with 8 cores each
DDR5 = 2 * 12 * 4800e6 * 8  # two sockets of 12 channels
SOCKETS = {domain: 12 * (domain // 12) for domain in range(24)}


def tree(at: Path, domain_by_cpu: Mapping[int, int], nodes: tuple[str, ...]) -> Files:
    for cpu, domain in domain_by_cpu.items():
        cache = at / f"devices/system/cpu/cpu{cpu}/cache/index3"
        cache.mkdir(parents=True)
        (cache / "id").write_text(f"{domain}\n")
    for number, cpus in enumerate(nodes):
        node = at / f"devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cpus}\n")
    return Files(sys=at)


@pytest.mark.parametrize(
    ("domain_by_cpu", "nodes", "expected"),
    [
        pytest.param({0: 0, 1: 0, 2: 1, 3: 1}, ("0-1", "2-3"), {0: 0, 1: 1}, id="Intel: a cache is a socket"),
        pytest.param(EPYC, ("0-95", "96-191"), SOCKETS, id="AMD: twelve caches are one"),
        pytest.param(
            {0: 0, 1: 1, 2: 2, 3: 3}, ("0", "1", "2-3"), {0: 0, 1: 1, 2: 2, 3: 2}, id="AMD with four nodes in a socket"
        ),
        pytest.param(
            {0: 0, 1: 0, 2: 8, 3: 8}, ("0", "1", "2", "3"), {0: 0, 8: 8}, id="two nodes behind one cache (SNC)"
        ),
        pytest.param({0: 0, 1: 8}, (), {0: 0, 8: 8}, id="no nodes: each cache alone"),
        pytest.param({0: 3, 1: 8}, ("0-1", ""), {3: 3, 8: 3}, id="a node without CPUs"),
    ],
)
def test_caches_of_one_numa_node_share_its_controllers(
    tmp_path: Path, domain_by_cpu: Mapping[int, int], nodes: tuple[str, ...], expected: Mapping[int, int]
) -> None:
    found = socket_by_domain(tree(tmp_path, domain_by_cpu, nodes), set(domain_by_cpu.values()))
    assert found == expected


def with_a_node_for_each_cache(at: Path, same_memory: Callable[[int, int], bool], distances: tuple[int, ...]) -> Files:
    """Two sockets of twelve caches, each a NUMA node. `distances`: with the same memory, on one socket, else."""
    files = tree(at, EPYC, tuple(f"{8 * node}-{8 * node + 7}" for node in range(24)))
    for cpu in EPYC:
        (at / f"devices/system/cpu/cpu{cpu}/topology").mkdir()
        (at / f"devices/system/cpu/cpu{cpu}/topology/physical_package_id").write_text(f"{cpu // 96}\n")
    for one in range(24):
        apart = [distances[0 if same_memory(one, two) else 1 + (one // 12 != two // 12)] for two in range(24)]
        apart[one] = 10
        (at / f"devices/system/node/node{one}/distance").write_text(" ".join(map(str, apart)) + "\n")
    return files


@pytest.mark.parametrize(
    ("caches", "distances", "expected", "is_told"),
    [
        pytest.param(12, (11, 12, 32), SOCKETS, True, id="L3 as NUMA: one memory for a socket"),
        pytest.param(3, (11, 12, 32), {c: 3 * (c // 3) for c in range(24)}, True, id="L3 as NUMA with NPS4"),
        pytest.param(1, (11, 12, 32), {c: c for c in range(24)}, True, id="a node with one cache has its own memory"),
        pytest.param(1, (20, 20, 20), {c: c for c in range(24)}, False, id="distances that say nothing"),
    ],
)
def test_caches_that_are_numa_nodes_share_what_is_near(
    tmp_path: Path, caches: int, distances: tuple[int, ...], expected: Mapping[int, int], is_told: bool
) -> None:
    """Else one busy cache would count as contention, and full memory as calm."""
    files = with_a_node_for_each_cache(tmp_path, lambda one, two: one // caches == two // caches, distances)
    assert socket_by_domain(files, range(24)) == expected
    assert controllers_lacks(files, range(24)) == (() if is_told else (NOT_TOLD,))


def test_nothing_is_lacking_where_nodes_have_several_caches_or_a_cache_several_nodes(tmp_path: Path) -> None:
    assert controllers_lacks(tree(tmp_path / "amd", EPYC, ("0-95", "96-191")), range(24)) == ()
    assert controllers_lacks(tree(tmp_path / "snc", {0: 0, 1: 0, 2: 8, 3: 8}, ("0", "1", "2", "3")), {0, 8}) == ()


@pytest.mark.parametrize(
    ("text", "expected"), [("0-2,8\n", {0, 1, 2, 8}), ("", set()), ("x,3", {3}), ("5", {5}), ("4-", set())]
)
def test_the_kernel_s_lists_of_cpus_are_read(text: str, expected: set[int]) -> None:
    assert cpus_from(text) == expected


def test_a_socket_has_no_sample_while_one_of_its_caches_has_none() -> None:
    assert by_socket({0: 5.0, 1: 6.0, 2: 7.0}, {0: 0, 1: 0, 2: 2}) == {0: 11.0, 2: 7.0}
    assert by_socket({0: 5.0, 1: None, 2: 7.0}, {0: 0, 1: 0, 2: 2}) == {0: None, 2: 7.0}
    same = MemoryTraffic(by_pod={"a": {0: 1.0, 1: None}}, totals={0: 3.0, 1: 4.0})
    assert traffic_by_socket(same, {0: 0, 1: 1}) is same
    folded = traffic_by_socket(same, {0: 0, 1: 0})
    assert (folded.totals, folded.by_pod) == ({0: 7.0}, {"a": {0: None}})


def share(rate_by_domain: Mapping[int, float]) -> Mapping[int, float | None]:
    peak = choose_peak(set(SOCKETS.values()), configured_bytes_per_s=None, measured=None, memory=DDR5)
    assert peak is not None
    rates = by_socket(dict.fromkeys(range(24), 0.0) | dict(rate_by_domain), SOCKETS)
    return bandwidth_shares(rates, peak.bytes_per_s, pods_age_s=0)


def test_one_busy_cache_of_many_is_no_contention_and_a_full_socket_is() -> None:
    """Finding H5: one pod at 50 GB/s counted as 163 % of its cache's part, and full memory as 61 % afterwards."""
    alone = share({0: 50 * GB})
    assert alone[0] == pytest.approx(50 * GB / (0.8 * DDR5 / 2))
    assert (alone[0] or 1) < 0.2
    full = share(dict.fromkeys(range(12), 28 * GB))
    assert (full[0] or 0) > TRIGGER
    assert full[12] == 0


def test_the_limit_of_a_socket_is_a_part_of_each_cache_s_share() -> None:
    amd = Abilities(limiting=True, domains=tuple(range(24)), unit=Unit.EIGHTHS, unlimited=2048)
    limits = limits_by_socket(amd, {0: 360 * GB, 12: 360 * GB}, SOCKETS)
    assert limits[12] == (2048, 216, 192, 168, 144, 120, 96, 72, 48)  # of 30 GB/s
    assert domains_by_socket(SOCKETS) == {0: tuple(range(12)), 12: tuple(range(12, 24))}


def test_a_theoretical_peak_is_raised_to_the_memory_s_own_and_falls_back() -> None:
    first = Peak(bytes_per_s={0: 80.0, 12: 80.0}, source=PeakSource.THEORETICAL)
    raised = settled_peak(raise_peak(first, {0: 500.0, 12: 90.0}), first, 0.0)
    assert raised.bytes_per_s == {0: 100.0, 12: 90.0}
    assert settled_peak(raised, first, 1.0) is raised
    assert settled_peak(raised, first, 3600.0).bytes_per_s == pytest.approx({0: 90.0, 12: 85.0})
    assert settled_peak(raised, first, 1e6).bytes_per_s == pytest.approx({0: 80.0, 12: 80.0})


def test_a_theoretical_peak_does_not_fall_below_traffic_that_its_memory_could_not_move() -> None:
    first = Peak(bytes_per_s={0: 80.0, 12: 80.0, 24: 80.0}, source=PeakSource.THEORETICAL)
    rates = {0: 500.0, 12: 100.0, 24: None}
    corrected = first_peak_after(first, rates)
    assert corrected.bytes_per_s == {0: 500.0, 12: 80.0, 24: 80.0}
    raised = settled_peak(raise_peak(first, rates), corrected, 0.0)
    assert raised.bytes_per_s == {0: 500.0, 12: 100.0, 24: 80.0}
    assert settled_peak(raised, corrected, 1e6).bytes_per_s == pytest.approx({0: 500.0, 12: 80.0, 24: 80.0})
    assert first_peak_after(first, {0: 100.0, 12: math.nan, 99: 500.0}) is first
    measured = replace(first, source=PeakSource.MEASURED)
    assert first_peak_after(measured, rates) is measured


@pytest.mark.parametrize("seen", [(124.0,), (101.0, 124.0), (101.0, 112.0, 124.0, 118.0), (124.0, 101.0)])
def test_a_misread_peak_stays_at_the_most_traffic_in_whatever_order_it_came(seen: tuple[float, ...]) -> None:
    """The clock allows 100 by the table, also after 101 showed that this is wrong."""
    first = Peak(bytes_per_s={0: 80.0, 12: 80.0}, source=PeakSource.THEORETICAL)
    for rate in seen:
        first = first_peak_after(first, {0: rate, 12: 99.0})
    assert first.bytes_per_s == {0: 124.0, 12: 80.0}
    assert first_peak_after(first, {0: 124.0, 12: 100.0}) is first
    raised = settled_peak(raise_peak(first, {12: 500.0}), first, 0.0)
    assert raised.bytes_per_s == {0: 124.0, 12: 100.0}


@pytest.mark.parametrize("source", [PeakSource.CONFIGURED, PeakSource.MEASURED])
def test_other_peaks_stay_as_they_were_raised(source: PeakSource) -> None:
    first = Peak(bytes_per_s={0: 80.0}, source=source)
    raised = raise_peak(first, {0: 500.0})
    assert settled_peak(raised, first, 1e6) is raised
