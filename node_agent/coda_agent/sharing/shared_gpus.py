"""The socket and the coordinator together: what the agent's loop calls once a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from coda.sharing.config import SharingConfig
from coda_agent.cluster import LocalPod
from coda_agent.gpus.processes import ProcessOwners
from coda_agent.host import Files
from coda_agent.sensor import Senses
from coda_agent.settings import Settings
from coda_agent.sharing.coordinator import Coordinator, GpuOrder
from coda_agent.sharing.messages import PROTOCOL, Message
from coda_agent.sharing.server import Peer, SharingServer
from coda_agent.sharing.units import SharedGpu, shared_gpus_from

REPEAT_S: Final = 10.0
"""Seconds after which an order is sent again, or after a third of its hold: that begins again, and one that was lost
arrives."""


class SharedGpus:
    """Serves the processes of this node's shared GPUs."""

    def __init__(
        self,
        path: Path,
        pod_uid_of: Callable[[int], str | None],
        clock: Callable[[], float],
        coordinator: Coordinator | None = None,
    ) -> None:
        """`clock`: seconds that never jump."""
        self._clock = clock
        self.coordinator = coordinator or Coordinator(SharingConfig())
        self.server = SharingServer(
            path, pod_uid_of, joined=self._joined, heard=self._heard, left=self.coordinator.leave
        )
        self._sent: dict[tuple[Hashable, str], tuple[GpuOrder, float]] = {}  # by peer and GPU, with the time
        self._number = 0

    @classmethod
    def from_settings(cls, settings: Settings) -> SharedGpus:
        """Of this node, by the agent's settings."""
        coordinator = Coordinator(SharingConfig(), hold_s=settings.sharing_hold_s)
        return cls(settings.sharing_socket, pods_by_pid(settings.files()), time.monotonic, coordinator)

    def start(self) -> None:
        """Listen. Raises InvalidInput."""
        self.server.start()

    def stop(self) -> None:
        """Close the socket and every connection."""
        self.server.stop()

    def round(self, senses: Senses, local: Sequence[LocalPod]) -> tuple[str, ...]:
        """Decide by what was just measured, and send orders. Returns problems in one sentence each."""
        return self.decide(shared_gpus_from(senses.gpus.readings, senses.grants, local, senses.users))

    def decide(self, gpus: Sequence[SharedGpu]) -> tuple[str, ...]:
        """Decide for these GPUs, and send what has changed or is old. Returns problems in one sentence each."""
        now_s = self._clock()
        decided = self.coordinator.round(gpus, now_s)
        sent, self._sent = self._sent, {}
        for peer in tuple(self.server.peers):
            for order in decided.get(peer, ()):
                self._send(peer, order, sent.get((peer, order.gpu)), now_s)
            if (waits := self.coordinator.answers.get(peer)) is not None:
                self.server.send(peer, {"v": PROTOCOL, "type": "answer", "wait": waits})
        return self.coordinator.problems

    @property
    def to_move(self) -> Mapping[str, tuple[str, ...]]:
        """The uids of pods that should go on elsewhere, by the UUID of their GPU, by the last round."""
        return self.coordinator.to_move

    @property
    def awaited(self) -> frozenset[str]:
        """The GPUs on which a guaranteed job waits for memory of these pods, which then all leave."""
        return self.coordinator.awaited

    @property
    def heard(self) -> frozenset[str]:
        """The GPUs whose guaranteed job ended a mini-batch lately."""
        return self.coordinator.heard

    def _send(self, peer: Peer, order: GpuOrder, before: tuple[GpuOrder, float] | None, now_s: float) -> None:
        repeat_s = min(REPEAT_S, order.hold_s / 3) if order.hold_s else REPEAT_S
        if before is not None and before[0] == order and now_s - before[1] < repeat_s:
            self._sent[peer, order.gpu] = before
            return
        self._number += 1
        if self.server.send(peer, order_json(self._number, order)):
            self._sent[peer, order.gpu] = (order, now_s)

    def _joined(self, peer: Peer) -> None:
        self.coordinator.join(peer, peer.pod_uid)

    def _heard(self, peer: Peer, message: Message) -> None:
        self.coordinator.take(peer, message, self._clock())


def order_json(number: int, order: GpuOrder) -> Mapping[str, Any]:
    """Return an order as it is sent."""
    return {
        "v": PROTOCOL,
        "type": "order",
        "id": number,
        "gpu": order.gpu,
        "share": order.share,
        "chunk_s": order.chunk_s,
        "device": order.device_bytes,
        "alone": order.alone,
        "drain": order.drain,
        "hold_s": order.hold_s,
    }


def pods_by_pid(files: Files) -> Callable[[int], str | None]:
    """Return a function that tells the pod of a process on this node, by its cgroup; None: of no pod."""
    owners = ProcessOwners(files)

    def pod_uid_of(pid: int) -> str | None:
        user = owners.identify([pid]).get(pid)
        return None if user is None else user.pod_uid

    return pod_uid_of
