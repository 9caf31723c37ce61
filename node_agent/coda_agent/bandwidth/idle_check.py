"""Whether a node may be fully loaded for some seconds: it is idle, with enough memory and all its cores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coda.errors import Outage
from coda_agent.bandwidth.memory_headroom import memory_headroom_bytes
from coda_agent.host import Files

BUSY_SHARE = 0.05  # of all cores; above it somebody works here
CACHE_FACTOR = 4  # buffers over the last-level cache: STREAM's rule
MEMORY_SHARE = 0.5  # of the available memory that may be used
PROCESS_BYTES = 6 << 20  # of each process of the load, beside its buffers; measured: 4.4 MiB
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
CPUS = "devices/system/cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """Clock ticks of all CPUs since boot."""

    busy: int
    all: int


def read_cpu_times(files: Files) -> CpuTimes:
    """Return the ticks as of now. Raises Outage if they cannot be read."""
    try:
        words = files.proc.read_text("stat", most_bytes=16 << 20).split("\n", 1)[0].split()
        ticks = [int(word) for word in words[1:9]]  # the users' ticks contain the guests'
        if words[0] != "cpu" or len(ticks) < 5:
            raise ValueError(words[0])
    except (OSError, ValueError, IndexError) as error:
        raise Outage(f"how busy the node is cannot be read: {error}") from error
    return CpuTimes(busy=sum(ticks) - ticks[3] - ticks[4], all=sum(ticks))  # without idle, and waiting for disks


def reason_not_idle(before: CpuTimes, after: CpuTimes, gpu_pods: Collection[str]) -> str | None:
    """Return why the node must not be measured now, in one sentence; None: it is idle.

    `gpu_pods`: pods with GPUs or other devices."""
    if gpu_pods:
        return f"pods with GPUs or other devices run on this node: {', '.join(sorted(gpu_pods)[:3])}"
    if after.all <= before.all:
        return "it cannot be told whether the node is idle: its CPU time does not pass"
    share = (after.busy - before.busy) / (after.all - before.all)
    return f"the node is busy: {share:.0%} of its CPU time" if share > BUSY_SHARE else None


def buffer_bytes_by_cpu(files: Files, usable: Collection[int]) -> Mapping[int, int]:
    """Return one CPU per core, with the bytes that its copies need: four times the cache, shared by the cache's cores.

    Raises Outage if the caches cannot be read, a core may not be used, or memory is short. Memory counts on the node
    and within this process's own limit, above which the kernel would kill the agent with the load."""
    try:
        cores = _first_siblings(files)
        caches = {cpu: _cache(files, cpu) for cpu in cores}
        available = _available_bytes(files)
    except (OSError, ValueError, KeyError) as error:
        raise Outage(f"the machine's caches and memory cannot be read: {error}") from error
    missing = sorted(set(cores) - set(usable))
    if missing:
        raise Outage(f"this process may not run on CPU {missing[0]}, so it cannot load the whole node")
    sharing = [shared for _, shared in caches.values()]
    needs = {cpu: -(-CACHE_FACTOR * size // sharing.count(shared)) for cpu, (size, shared) in caches.items()}
    if sum(needs.values()) > MEMORY_SHARE * available:
        wanted, free = sum(needs.values()) >> 20, available >> 20
        raise Outage(f"measuring needs {wanted} MiB, more than half of the {free} MiB that are available")
    _check_own_limit(files, sum(needs.values()) + len(needs) * PROCESS_BYTES)
    return needs


def _check_own_limit(files: Files, wanted_bytes: int) -> None:
    room_bytes = memory_headroom_bytes(files)
    if room_bytes is not None and wanted_bytes > room_bytes:
        raise Outage(
            f"the peak bandwidth is not measured: that takes {wanted_bytes >> 20} MiB, and the agent's memory limit "
            f"leaves {room_bytes >> 20} MiB; raise the limit, or set CODA_PEAK_GB_PER_S"
        )


def _first_siblings(files: Files) -> tuple[int, ...]:
    names = (name.removeprefix("cpu") for name in files.sys.listdir(CPUS) if name.startswith("cpu"))
    cpus = sorted(int(name) for name in names if name.isascii() and name.isdigit())
    online = [cpu for cpu in cpus if files.sys.exists(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list")]
    first = (_first(files.sys.read_text(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list")) for cpu in online)
    return tuple(sorted(set(first)))


def _first(cpu_list: str) -> int:
    """The first CPU of a list such as `0,64` or `0-1`."""
    return int(cpu_list.strip().split(",")[0].split("-")[0])


def _cache(files: Files, cpu: int) -> tuple[int, str]:
    """Bytes of the last cache, and the CPUs that share it."""
    index = max(name for name in files.sys.listdir(f"{CPUS}/cpu{cpu}/cache") if name.startswith("index"))
    size = files.sys.read_text(f"{CPUS}/cpu{cpu}/cache/{index}/size").strip()
    shared = files.sys.read_text(f"{CPUS}/cpu{cpu}/cache/{index}/shared_cpu_list").strip()
    return int(size[:-1]) * UNITS[size[-1]], shared


def _available_bytes(files: Files) -> int:
    lines = (line.split() for line in files.proc.read_text("meminfo", most_bytes=1 << 16).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}["MemAvailable:"] << 10
