"""Which GPUs a job gets: Algorithm 1 of AntMan (OSDI 2020).

A guaranteed job gets GPUs that no other guaranteed job has, opportunistic ones beside it or not. If there are too few,
it reserves what there is and waits; reserved GPUs still serve opportunistic jobs. An opportunistic job gets the GPUs on
which it is expected to be fastest, among those whose utilisation was below M, or waits with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from coda.errors import InvalidInput
from coda.sharing.config import SharingConfig
from coda.sharing.pairing import NOTHING_MEASURED, GpuProfile, MeasuredPairs, equation_1, expected_speed

_APART_SPEED = 0.75  # of a gang on several nodes, relative to one node (CODA: 25-30 % slower)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """One GPU. Raises InvalidInput for impossible numbers.

    load: its utilisation over the last 10 s, 0..1
    guaranteed, reserved_for: uids of the guaranteed job that runs on it, and of the one that waits for it
    profile: of that guaranteed job; None: not known yet, and then nobody joins it
    sharers: profiles of its opportunistic jobs
    steady: it follows the speed of its guaranteed job, which is not slower than the tolerance
    exclusive: its guaranteed job allows no neighbour"""

    node: str
    index: int
    total_bytes: int
    load: float = 0.0
    guaranteed: str | None = None
    reserved_for: str | None = None
    profile: GpuProfile | None = None
    sharers: tuple[GpuProfile, ...] = ()
    steady: bool = True
    exclusive: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.load <= 1 or self.total_bytes <= 0:
            raise InvalidInput(f"GPU {self.index} of {self.node}: load must be 0 to 1, and memory above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChoice:
    """The GPUs of a job. starts: all that it asked for; else they are reserved (guaranteed), or there are none.

    speed: what is expected of an opportunistic job, relative to alone
    reason: why it waits, in half a sentence; empty if it starts"""

    gpus: tuple[SharedGpu, ...]
    starts: bool
    speed: float = 1.0
    reason: str = ""


def gpus_for_guaranteed(uid: str, gpus: int, cluster: Sequence[SharedGpu]) -> GpuChoice:
    """Return the GPUs on which a guaranteed job starts, or those that it reserves while it waits.

    On one node if one is large enough, else on the fewest. Ties: the fullest node that fits (opportunistic jobs fill
    none), fewest neighbours to slow down, name, index. O(GPUs log GPUs)."""
    if gpus < 1:
        raise InvalidInput(f"a job that shares GPUs needs at least one, got {gpus}")
    nodes = [(name, list(members)) for name, members in groupby(sorted(cluster, key=_place), key=lambda one: one.node)]
    open_to = {name: [one for one in members if _is_open(one, uid)] for name, members in nodes}
    largest = max((len(members) for _, members in nodes), default=0)
    if gpus > len(cluster):
        return GpuChoice(gpus=(), starts=False, reason=f"it asks for {gpus} GPUs and there are {len(cluster)}")
    if gpus <= largest:
        able = [name for name, members in nodes if len(members) >= gpus]
        enough = [name for name in able if len(open_to[name]) >= gpus]
        if enough:
            ways = ((len(open_to[name]) - gpus, *_disturbed(open_to[name], gpus)) for name in enough)
            return GpuChoice(gpus=min(ways, key=lambda way: way[:3])[3], starts=True)
        best = min(able, key=lambda name: (-len(open_to[name]), name))
        return _reserved(open_to[best], gpus)
    taken: list[SharedGpu] = []
    for name in sorted(open_to, key=lambda name: (-len(open_to[name]), name)):
        taken += _calmest(open_to[name], min(gpus - len(taken), len(open_to[name])))
    if len(taken) == gpus:
        return GpuChoice(gpus=tuple(taken), starts=True)
    return _reserved(taken, gpus)


def gpus_for_opportunistic(
    profile: GpuProfile,
    gpus: int,
    cluster: Sequence[SharedGpu],
    config: SharingConfig,
    pairs: MeasuredPairs = NOTHING_MEASURED,
    *,
    by_load: bool = False,
) -> GpuChoice:
    """Return the GPUs on which an opportunistic job starts, or why it waits.

    The order: memory fits, expected speed (of the slowest GPU; less on several nodes), Eq. 1, load, name, index. Adding
    a free GPU never hurts. `by_load`: least load, name, index instead, as AntMan. O(GPUs log GPUs)."""
    if gpus < 1:
        raise InvalidInput(f"a job that shares GPUs needs at least one, got {gpus}")
    admitting = [one for one in cluster if _admits(profile, one, config)]
    speeds = {_place(one): speed_on(profile, one, config, pairs) for one in admitting}
    ranked = sorted(
        (_rank(profile, one, speeds[_place(one)], by_load=by_load), _place(one), one)
        for one in admitting
        if speeds[_place(one)] >= config.least_speed
    )
    if len(ranked) < gpus:
        return _no_gpus(gpus, len(ranked), sorted(speeds.values(), reverse=True), config)
    by_node: dict[str, list[_Ranked]] = {}
    for one in ranked:
        by_node.setdefault(one[1][0], []).append(one)
    ways = [members[:gpus] for members in by_node.values() if len(members) >= gpus]
    if len(by_node) > 1 and gpus > 1:
        ways.append(ranked[:gpus])
    best = min(ways, key=_worst)
    chosen = tuple(one[2] for one in best)
    apart = _APART_SPEED if len({one.node for one in chosen}) > 1 else 1.0
    return GpuChoice(gpus=chosen, starts=True, speed=apart * min(speeds[_place(one)] for one in chosen))


_Rank = tuple[bool, float, float, float]
_Ranked = tuple[_Rank, tuple[str, int], SharedGpu]


def _worst(way: Sequence[_Ranked]) -> tuple[bool, float, bool, _Rank, tuple[str, int]]:
    apart = len({node for _, (node, _), _ in way}) > 1
    rank = way[-1][0]
    return rank[0], rank[1] * (_APART_SPEED if apart else 1.0), apart, rank, way[0][1]


def _no_gpus(asked: int, found: int, speeds: Sequence[float], config: SharingConfig) -> GpuChoice:
    if len(speeds) < asked:
        reason = f"{len(speeds)} GPUs may take it ({asked} needed): the others are busy, full or not steady"
        return GpuChoice(gpus=(), starts=False, speed=0.0, reason=reason)
    speed = speeds[asked - 1]
    reason = f"its GPUs are too busy: the best would give {speed:.0%} ({config.least_speed:.0%} needed)"
    return GpuChoice(gpus=(), starts=False, speed=speed, reason=reason)


def speed_on(
    profile: GpuProfile, gpu: SharedGpu, config: SharingConfig, pairs: MeasuredPairs = NOTHING_MEASURED
) -> float:
    """Return the expected speed of an opportunistic job on a GPU beside all that is there, relative to alone.

    Neighbours of its own class halve, third, ... the share beside a guaranteed job; else they share its time."""
    if gpu.profile is not None:
        return expected_speed(profile, gpu.profile, pairs, config) / (1 + len(gpu.sharers))
    busy = profile.duty + sum(sharer.duty for sharer in gpu.sharers)
    return 1.0 if not gpu.sharers else min(1.0, 1 / max(1.0, busy))


def may_upgrade(uid: str, on: Sequence[SharedGpu], *, quota_left: int) -> bool:
    """True if an opportunistic job can become guaranteed where it runs: all of its GPUs, or none."""
    return 0 < len(on) <= quota_left and all(_is_open(gpu, uid) for gpu in on)


def _is_open(gpu: SharedGpu, uid: str) -> bool:
    return gpu.guaranteed is None and gpu.reserved_for in (None, uid)


def _place(gpu: SharedGpu) -> tuple[str, int]:
    return gpu.node, gpu.index


def _calmest(members: Sequence[SharedGpu], gpus: int) -> tuple[SharedGpu, ...]:
    return tuple(sorted(members, key=lambda one: (len(one.sharers), one.load, one.index))[:gpus])


def _disturbed(members: Sequence[SharedGpu], gpus: int) -> tuple[int, str, tuple[SharedGpu, ...]]:
    way = _calmest(members, gpus)
    return sum(len(gpu.sharers) for gpu in way), way[0].node, way


def _reserved(gpus: Sequence[SharedGpu], asked: int) -> GpuChoice:
    return GpuChoice(gpus=tuple(gpus[:asked]), starts=False, reason=f"it holds {len(gpus)} of {asked} GPUs and waits")


def _admits(profile: GpuProfile, gpu: SharedGpu, config: SharingConfig) -> bool:
    known = gpu.guaranteed is None or gpu.profile is not None
    free = not gpu.exclusive and gpu.steady and known and len(gpu.sharers) < config.seats
    return free and gpu.load < config.busy_share and profile.floor_bytes <= gpu.total_bytes - _peaks(gpu)


def _peaks(gpu: SharedGpu) -> int:
    """What the residents need: all that the guaranteed job may, and what its neighbours keep."""
    guaranteed = gpu.profile.peak_bytes if gpu.profile else 0
    return guaranteed + sum(sharer.floor_bytes for sharer in gpu.sharers)


def _rank(profile: GpuProfile, gpu: SharedGpu, speed: float, *, by_load: bool) -> _Rank:
    if by_load:
        return False, gpu.load, 0.0, 0.0
    residents = [*([gpu.profile] if gpu.profile else []), *gpu.sharers]
    in_host_memory = sum(one.peak_bytes for one in (profile, *residents)) > gpu.total_bytes
    return in_host_memory, -speed, equation_1(residents[0], profile) if residents else 0.0, gpu.load
