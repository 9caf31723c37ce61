"""One resource, and whether the kubelet knows it: the kubelet forgets all plugins when it starts, and tells nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from coda.errors import Outage
from coda_agent.gpus.unary_call import CallFailed, call
from coda_agent.seats.device_plugin import (
    ALLOCATE,
    LIST_AND_WATCH,
    OPTIONS,
    REGISTER,
    GpuAccess,
    JobFiles,
    Seat,
    allocation,
    list_of,
    options,
    registration,
)
from coda_agent.seats.grpc_server import GrpcServer, Service

KUBELET: Final = "kubelet.sock"
REGISTER_S: Final = 10.0
UNWATCHED_S: Final = 10.0
"""Seconds to wait for the kubelet to listen after it was registered with, and again for each try. Our choice."""

LONGEST_PAUSE_S: Final = 30.0
_MOST_ANSWER_BYTES: Final = 1 << 12

Kubelet = tuple[int, int]
"""The kubelet's socket, as long as it is the same one: inode and time of change."""


def kubelet_in(folder: Path) -> Kubelet | None:
    """Return which kubelet listens in `folder`; None: none. A killed one still has its socket."""
    try:
        found = (folder / KUBELET).stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def register_with_kubelet(folder: Path, resource: str, endpoint: str) -> None:
    """Tell the kubelet of a resource; it calls back before it answers. Raises Outage."""
    try:
        request = registration(resource, endpoint)
        call(folder / KUBELET, REGISTER, request, timeout_s=REGISTER_S, most_bytes=_MOST_ANSWER_BYTES)
    except CallFailed as error:
        raise Outage(f"the kubelet's {folder / KUBELET} did not take {resource}: {error}") from error


class PluginSocket:
    """The socket of one resource. In the event loop, but for `register_with_kubelet`."""

    def __init__(self, folder: Path, resource: str, access: GpuAccess, files: Callable[[], JobFiles | None]) -> None:
        """`files`: what lies on the node for jobs at that moment."""
        self.resource = resource
        self.endpoint = f"coda-{resource.rpartition('/')[2]}.sock"
        self._access, self._files = access, files
        self._seats: Mapping[str, Seat] = {}
        calls = {OPTIONS: lambda _: options(), ALLOCATE: self._allocate}
        self._server = GrpcServer(folder / self.endpoint, Service(calls=calls, watch=LIST_AND_WATCH))
        self._known_to: Kubelet | None = None
        self._pause_s = 1.0
        self._not_before_s = 0.0

    async def listen(self) -> None:
        """Be there. Raises Outage."""
        if not self._server.is_there:
            self._known_to, self._not_before_s = None, 0.0
            await self._server.start()

    def offer(self, seats: Sequence[Seat]) -> None:
        """From now on these are all seats. The kubelet is told if that is news."""
        offered = {seat.id: seat for seat in seats}
        if offered != self._seats or not self._server.message:
            self._seats = offered
            self._server.publish(list_of(seats))

    def must_register(self, kubelet: Kubelet, now_s: float) -> bool:
        """True if this kubelet does not know the resource, or seems to have forgotten it. Pauses grow.

        Never while it listens: registered with twice, kubelets end the new connection when the old one ends."""
        if self._known_to != kubelet:
            is_new = self._known_to is not None
            return is_new or now_s >= self._not_before_s
        if self._server.watchers:
            self._pause_s = 1.0
            return False
        return now_s >= self._not_before_s

    def note_try(self, kubelet: Kubelet, now_s: float, *, is_known: bool) -> None:
        """Remember how the last try to register ended."""
        self._known_to = kubelet if is_known else None
        self._not_before_s = now_s + max(self._pause_s, UNWATCHED_S if is_known else 0.0)
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)

    def stop(self) -> None:
        """Be gone: the kubelet then counts the seats as not well, and their pods run on."""
        self._server.stop()

    def _allocate(self, request: bytes) -> bytes:
        return allocation(request, self._seats, self._files(), self._access)
