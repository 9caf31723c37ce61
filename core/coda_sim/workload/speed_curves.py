"""How fast a training job runs, from its cores, its neighbours and the distance between its ranks.

Speeds are shares of the model's best: 1.0 at its best core count on one node without contention. The run time of a
trace was recorded at the requested cores, so work proceeds at `speed(now) / asked_speed(requested)` of that pace.
Source: CODA (ICDCS 2020), sections III and IV; the values are those of a profile set (`model_profiles`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from enum import Enum

from coda_sim.workload.model_profiles import ModelProfile


class Distance(Enum):
    """How far apart the ranks of a gang are."""

    ONE_NODE = "one node"
    NODES = "nodes of one rack"
    BUSY_NODES = "nodes of one rack with busy neighbours"
    RACKS = "nodes of several racks"


def best_cores(profile: ModelProfile, gpus: int, distance: Distance = Distance.ONE_NODE) -> int:
    """Return the cores on one node with which the model runs fastest on `gpus` (>= 1) of its GPUs, at least 1.

    On one node: linear in the GPUs, rounded (ties: to even); for a measured model the fewest cores that reach its best.
    On several nodes: the same for every number of GPUs."""
    if distance is not Distance.ONE_NODE:
        return profile.shared.multi_node_cores
    if profile.measured:
        return math.ceil(min(cores for cores, share in profile.measured if share == _best(profile)) * gpus)
    return max(1, round(profile.one_gpu_cores + profile.more_gpu_cores * (gpus - 1)))


def speed(
    profile: ModelProfile,
    cores: float,
    gpus: int,
    distance: Distance = Distance.ONE_NODE,
    bandwidth_share: float = 0.0,
) -> float:
    """Return the speed with `cores` (> 0) and `gpus` (>= 1) on each of its nodes, as a share (0..1) of the best.

    `bandwidth_share`: what everything on the node wants over the node's memory bandwidth; may exceed 1. A gang runs as
    fast as its slowest node. O(1)."""
    whole = _speed_by_cores(profile, cores, gpus, distance) * _speed_by_distance(profile, distance)
    return whole * (1 - contention_loss(profile, bandwidth_share))


def asked_speed(profile: ModelProfile, cores_per_replica: float, gpus_per_replica: int, replicas: int) -> float:
    """Return the speed of the recorded run time: without contention, each replica on its own node, in one rack."""
    distance = Distance.ONE_NODE if replicas == 1 else Distance.NODES
    return speed(profile, cores_per_replica, gpus_per_replica, distance)


def utilisation(profile: ModelProfile, job_speed: float) -> float:
    """Return the busy share (0..1) of the job's GPUs at that speed: both peak at the same core count."""
    return profile.peak_utilisation * job_speed


def bandwidth_bytes_per_s(profile: ModelProfile, gpus: int) -> float:
    """Return the memory bandwidth that the job wants on a node where it has `gpus` GPUs: linear in them."""
    return profile.bandwidth_bytes_per_s * gpus


def contention_loss(profile: ModelProfile, bandwidth_share: float) -> float:
    """Return the share of the speed lost at `bandwidth_share`: linear from the threshold to 1."""
    threshold = profile.shared.contention_from
    return profile.contention_loss * min(1.0, max(0.0, (bandwidth_share - threshold) / (1 - threshold)))


def _speed_by_cores(profile: ModelProfile, cores: float, gpus: int, distance: Distance) -> float:
    if profile.measured and distance is Distance.ONE_NODE:
        return _interpolated(profile.measured, cores / gpus)
    best, shared = best_cores(profile, gpus, distance), profile.shared
    if cores <= best:
        return 1 - (1 - shared.base_share) * (best - cores) / best
    return 1 - shared.drop_per_core * min(cores - best, shared.drop_at_most_cores)


def _speed_by_distance(profile: ModelProfile, distance: Distance) -> float:
    if distance is Distance.ONE_NODE:
        return 1.0
    shared = profile.shared
    further = {Distance.NODES: 1.0, Distance.BUSY_NODES: shared.busy_nodes_speed, Distance.RACKS: shared.racks_speed}
    return shared.multi_node_speed * further[distance]


def _interpolated(points: tuple[tuple[float, float], ...], cores: float) -> float:
    """Linear between the points, from 0 at no core, flat above the last."""
    index = bisect_left(points, (cores, 0.0))
    if index == len(points):
        return points[-1][1]
    high_cores, high = points[index]
    low_cores, low = points[index - 1] if index else (0.0, 0.0)
    return low + (high - low) * (cores - low_cores) / (high_cores - low_cores)


def _best(profile: ModelProfile) -> float:
    return max(share for _, share in profile.measured)
