"""The pods of every job, by the job that they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from coda_kube.objects.read import Owner, Pod

_NONE: Final[Mapping[str, Pod]] = MappingProxyType({})


class GangPods:
    """Every pod that belongs to a job, ended ones too until they are forgotten."""

    def __init__(self) -> None:
        self._pods_by_owner: dict[Owner, dict[str, Pod]] = {}  # by id of the pod

    def __contains__(self, owner: Owner) -> bool:
        return owner in self._pods_by_owner

    def set(self, pod: Pod | None, entry: Pod | None) -> None:
        """Set a pod among those of its job, or remove it if there is no `entry`."""
        if pod is None or pod.member is None:
            return
        pods = self._pods_by_owner.setdefault(pod.member.owner, {})
        if entry is not None:
            pods[pod.id] = entry
        else:
            pods.pop(pod.id, None)
        if not pods:
            del self._pods_by_owner[pod.member.owner]

    def of(self, owner: Owner) -> Mapping[str, Pod]:
        """The pods of a job by id."""
        return self._pods_by_owner.get(owner, _NONE)

    def ended(self, owner: Owner) -> list[str]:
        """The ids of a job's pods that have ended. O(pods of the job)."""
        return [pod.id for pod in self.of(owner).values() if pod.ended]

    def live(self, owner: Owner, attempt: int) -> Iterator[str]:
        """The ids of an attempt's pods that have not ended. O(pods of the job)."""
        for pod in self.of(owner).values():
            if pod.member is not None and pod.member.attempt == attempt and not pod.ended:
                yield pod.id
