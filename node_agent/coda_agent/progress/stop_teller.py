"""Which ranks of this node are told that they are to stop: each once, and again until it worked."""

from __future__ import annotations

from collections.abc import Mapping

from coda_agent.cluster import LocalPod


class StopTeller:
    """Remembers who was told, which costs nothing to forget: the file says it too."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}  # pod uid -> id of the announcement

    def due(self, local: tuple[LocalPod, ...]) -> tuple[LocalPod, ...]:
        """Return the running ranks that are to stop and were not told yet; all others that are gone are forgotten."""
        stopping = {pod.uid: pod for pod in local if pod.runs and pod.stop is not None}
        self._told = {uid: id_ for uid, id_ in self._told.items() if uid in stopping}
        return tuple(pod for uid, pod in stopping.items() if pod.stop and self._told.get(uid) != pod.stop.id)

    def take(self, due: tuple[LocalPod, ...], faults: Mapping[str, str]) -> tuple[str, ...]:
        """Note who was told. `faults`: by pod uid, "" for none. Return a sentence for each that was not."""
        for pod in due:
            if not faults[pod.uid] and pod.stop is not None:
                self._told[pod.uid] = pod.stop.id
        return tuple(f"{pod.id}: {faults[pod.uid]}" for pod in due if faults[pod.uid])
