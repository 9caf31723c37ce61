"""The hardware that can be emulated, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

GB = 1_000_000_000
ENDLESS_MIB = 4_294_967_295  # what mba_MBps shows where nothing is limited


@dataclass(frozen=True, slots=True, kw_only=True)
class Limiting:
    """Memory bandwidth allocation. `most`: the unlimited value; `in_mib`: mounted with mba_MBps."""

    closids: int = 8
    least: int = 10
    granularity: int = 10
    most: int = 100
    linear: bool = True
    in_mib: bool = False
    thread_throttle_mode: str | None = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """Bandwidth monitoring. `counters`: assignable ones per domain (ABMC); None: every group always counts.

    `waits_for_traffic`: a group is Unavailable in a domain where neither its id nor a child's has had traffic."""

    rmids: int = 144
    events: tuple[str, ...] = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
    counters: int | None = None
    nodes_per_cache: int = 1  # above 1: sub-NUMA clustering
    waits_for_traffic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Cache allocation."""

    closids: int = 16
    mask: int = 0x7FF


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of machine. Domains are last-level caches; their ids may have gaps."""

    name: str
    domains: tuple[int, ...] = (0, 1)
    limiting: Limiting | None = Limiting()
    monitoring: Monitoring | None = Monitoring()
    cache: Cache | None = Cache()
    slow_memory: bool = False  # one more line in schemata
    is_mounted: bool = True
    peak_bytes_per_s: float = 160 * GB  # of a domain
    core_bytes_per_s: float = 12 * GB  # what one core can draw

    @property
    def closids(self) -> int:
        """Classes of service: the least over all resources."""
        offers = [one.closids for one in (self.limiting, self.cache) if one is not None]
        return min(offers, default=0)

    @property
    def mount_options(self) -> str:
        """As /proc/mounts shows them."""
        in_mib = self.limiting is not None and self.limiting.in_mib
        return "rw,relatime,mba_MBps" if in_mib else "rw,relatime"


_INTEL = Profile(name="intel")
_AMD = Profile(
    name="amd",
    domains=(0, 1, 2, 3, 8, 9, 10, 11),
    limiting=Limiting(closids=16, least=0, granularity=1, most=2048, linear=False, thread_throttle_mode=None),
    monitoring=Monitoring(rmids=256, counters=32),
    cache=Cache(mask=0xFFFF),
    slow_memory=True,
    peak_bytes_per_s=40 * GB,
)

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        _INTEL,
        replace(_INTEL, name="intel-per-thread", limiting=Limiting(thread_throttle_mode="per-thread")),
        replace(_INTEL, name="intel-few-ids", monitoring=Monitoring(rmids=8)),
        replace(_INTEL, name="intel-mib", limiting=Limiting(in_mib=True, most=ENDLESS_MIB)),
        _AMD,
        replace(_AMD, name="amd-rome", monitoring=Monitoring(rmids=256, waits_for_traffic=True)),
        replace(_INTEL, name="mbm-only", limiting=None, cache=None),
        replace(_INTEL, name="mba-only", monitoring=None, cache=None),
        replace(_INTEL, name="l3-only", monitoring=None, limiting=None),
        replace(_INTEL, name="snc2", monitoring=Monitoring(rmids=72, nodes_per_cache=2)),
        replace(_INTEL, name="not-mounted", is_mounted=False),
    )
}
