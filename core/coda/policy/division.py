"""How nodes are divided between the arrays: by the ArrayQuota that selects them, else as the installation says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coda.history.division import Shares
from coda.model.world import ArrayQuota, Node
from coda.policy.arrays import large_nodes, reserved_cpu_m
from coda.policy.config import ArraysConfig

_REST = ArrayQuota(name="")
"""Stands for the nodes that no quota selects."""


@dataclass(frozen=True, slots=True)
class Division:
    """Node by node, in the order of the nodes that were divided."""

    quotas: list[str]  # the name of the ArrayQuota that counts; empty for none
    reserves_cpu_m: list[int]  # millicores that belong to the GPU array
    is_large: list[bool]  # the node belongs to the sub-array of large jobs


def divide(nodes: Sequence[Node], quotas: Iterable[ArrayQuota], arrays: ArraysConfig) -> Division:
    """Divide the nodes of each quota for themselves. `arrays`: for what the quotas leave open. O(nodes x quotas)."""
    oldest_first = sorted(quotas, key=lambda quota: (quota.created, quota.name))
    quota_by_node = [_quota_of(node, oldest_first) for node in nodes]
    large: set[str] = set()
    for quota in (*oldest_first, _REST):
        selected = [node for node, its in zip(nodes, quota_by_node, strict=True) if its is quota]
        large |= large_nodes(selected, _large_gpus(quota, selected, arrays))
    return Division(
        quotas=[quota.name for quota in quota_by_node],
        reserves_cpu_m=[
            reserved_cpu_m(node.allocatable, _reserve(quota, arrays))
            for node, quota in zip(nodes, quota_by_node, strict=True)
        ],
        is_large=[node.name in large for node in nodes],
    )


def shares_of(quota: ArrayQuota, gpus: int, arrays: ArraysConfig) -> Shares:
    """Return the division of a quota whose nodes have so many GPUs."""
    share = arrays.large_share if quota.large_share is None else quota.large_share
    if quota.large_gpus is not None:
        share = min(1.0, quota.large_gpus / gpus) if gpus else 0.0
    return Shares(_reserve(quota, arrays), share)


def selects(quota: ArrayQuota, node: Node) -> bool:
    """True if the node has every label that the quota asks for."""
    return all(node.labels.get(key) == value for key, value in quota.selector.items())


def _quota_of(node: Node, oldest_first: Iterable[ArrayQuota]) -> ArrayQuota:
    for quota in oldest_first:
        if selects(quota, node):
            return quota
    return _REST


def _reserve(quota: ArrayQuota, arrays: ArraysConfig) -> float:
    return arrays.reserve_cores_per_gpu if quota.reserve_cores_per_gpu is None else quota.reserve_cores_per_gpu


def _large_gpus(quota: ArrayQuota, nodes: Iterable[Node], arrays: ArraysConfig) -> int:
    if quota.large_gpus is not None:
        return quota.large_gpus
    share = arrays.large_share if quota.large_share is None else quota.large_share
    return round(share * sum(node.allocatable.gpus for node in nodes))
