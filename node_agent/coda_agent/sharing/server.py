"""The socket on the node. Who is who is asked of the kernel: never of the message.

A pod gets 100 messages a second, all its processes together; beyond that none of them is read, so that its own sends
fail and we do nothing. A pod that connects again and again is turned away. Packets that are too large or make no sense
are counted; after a hundred of them the connection ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import resource
import select
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coda.errors import InvalidInput
from coda_agent.sharing.messages import MOST_BYTES, Message, message_from

log = logging.getLogger(__name__)

RATE_PER_S: Final = 100.0
"""Messages of a pod. A process reports twice a second, so fifty may. At their largest they take 5 % of a core."""

BURST: Final = 200.0
"""As many as come when we start: each process says hello, and reports."""

CONNECTS_PER_S: Final = 10.0
"""New connections of a pod. Our choice: a process has one, and one more for each wait for memory."""

CONNECTS_BURST: Final = 128.0
"""As many as come when we start, and as many again."""

AWAY_S: Final = 0.2
"""For so long a process whose pod connects too often is turned away unseen: a look at its cgroup takes 60 us."""

MOST_AT_ONCE: Final = 64
"""Connections that are accepted before others are heard. As our queue has 128 places, a flood does not keep it full."""

WAIT_S: Final = 0.2
"""For so long a process is not read that has no message left."""

MOST_FAULTS: Final = 100
MOST_PER_POD: Final = 64
MOST_CONNECTIONS: Final = 1024
FEW_PER_POD: Final = 16
"""So many a pod may have although all together have too many: else sixteen guests keep a guaranteed job out."""

OPEN_FILES: Final = 8192
"""Of this process: `MOST_CONNECTIONS`, `FEW_PER_POD` of each of 256 pods, and what else it opens. The soft limit of a
container may be 1024."""

_PEER_PIDFD: Final = 77
"""SO_PEERPIDFD, from Linux 6.5 on; Python has no name for it."""


@dataclass(slots=True)
class Allowance:
    """How many messages a pod may still say now, and how often it may connect."""

    filled_s: float
    tokens: float = BURST
    connects: float = CONNECTS_BURST

    def fill(self, now_s: float) -> None:
        """Add what has come since the last time."""
        self.tokens = min(BURST, self.tokens + RATE_PER_S * (now_s - self.filled_s))
        self.connects = min(CONNECTS_BURST, self.connects + CONNECTS_PER_S * (now_s - self.filled_s))
        self.filled_s = now_s

    @property
    def is_full(self) -> bool:
        """True if nothing has to be remembered of the pod."""
        return self.tokens >= BURST and self.connects >= CONNECTS_BURST


@dataclass(slots=True, eq=False)
class Peer:
    """One connection. `pod_uid`: by the cgroup of the process that connected. `allowance`: the pod's."""

    connection: socket.socket
    pid: int
    pod_uid: str
    allowance: Allowance
    faults: int = 0


class SharingServer:
    """Accepts processes of pods, reads what they say, and sends orders that never wait."""

    def __init__(
        self,
        path: Path,
        pod_uid_of: Callable[[int], str | None],
        *,
        joined: Callable[[Peer], None],
        heard: Callable[[Peer, Message], None],
        left: Callable[[Peer], None],
    ) -> None:
        """`pod_uid_of`: by pid; None: it belongs to no pod, and is refused."""
        self._path = path
        self._pod_uid_of = pod_uid_of
        self._joined, self._heard, self._left = joined, heard, left
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.peers: set[Peer] = set()
        self._allowances: dict[str, Allowance] = {}  # by pod: also of one that has just left, until it is full again
        self._away_until_s: dict[int, float] = {}  # by pid
        self.refused = 0
        self.faults = 0

    def start(self) -> None:
        """Listen. Raises InvalidInput if the path cannot be used."""
        self._loop = asyncio.get_running_loop()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)  # an earlier agent's
            listening.bind(str(self._path))
            self._path.chmod(0o666)  # containers run as any user; the kernel tells the pod
            listening.listen(128)
        except OSError as error:
            listening.close()
            raise InvalidInput(f"{self._path}: no socket can be made there ({error.strerror})") from error
        _allow_open_files(OPEN_FILES)
        self._socket = listening
        self._loop.add_reader(listening, self._accept)

    def stop(self) -> None:
        """Close everything. The processes keep their last orders for a while. Never raises."""
        if self._socket is not None and self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            with contextlib.suppress(OSError):  # the next agent replaces what stays
                self._path.unlink(missing_ok=True)
        for peer in tuple(self.peers):
            self._drop(peer)

    def send(self, peer: Peer, message: Mapping[str, Any]) -> bool:
        """Send, or not: a process that does not read must not hold anybody up. True if it went out."""
        try:
            peer.connection.send(json.dumps(message, separators=(",", ":")).encode(), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            self._drop(peer)
            return False
        return True

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(MOST_AT_ONCE):
            try:
                connection, _ = self._socket.accept()
            except OSError:  # it is gone again, or there are no descriptors left
                return
            self._take_in(connection)

    def _take_in(self, connection: socket.socket) -> None:
        assert self._loop is not None
        peer = self._identified(connection)
        if peer is None:
            self.refused += 1
            connection.close()
            return
        connection.setblocking(False)
        self.peers.add(peer)
        self._joined(peer)
        self._loop.add_reader(connection, self._read, peer)

    def _identified(self, connection: socket.socket) -> Peer | None:
        assert self._loop is not None
        now_s = self._loop.time()
        pid, _uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if self._is_away(pid, now_s):
            return None
        uid = self._pod_uid_of(pid) if pid > 0 else None
        if uid is None:
            return None
        allowance = self._allowance_of(uid, now_s)
        if allowance.connects < 1:
            self._turn_away(pid, now_s)
            return None
        allowance.connects -= 1
        of_pod = sum(peer.pod_uid == uid for peer in self.peers)
        most = MOST_PER_POD if len(self.peers) < MOST_CONNECTIONS else FEW_PER_POD
        if of_pod >= most or _has_ended(connection):
            return None
        return Peer(connection=connection, pid=pid, pod_uid=uid, allowance=allowance)

    def _is_away(self, pid: int, now_s: float) -> bool:
        return now_s < self._away_until_s.get(pid, now_s)

    def _turn_away(self, pid: int, now_s: float) -> None:
        if len(self._away_until_s) >= MOST_CONNECTIONS:  # it begins a process for each connection
            self._away_until_s.clear()
        self._away_until_s[pid] = now_s + AWAY_S

    def _allowance_of(self, pod_uid: str, now_s: float) -> Allowance:
        """A pod that connects again gets no new one."""
        if (known := self._allowances.get(pod_uid)) is not None:
            known.fill(now_s)
            return known
        here = {peer.pod_uid for peer in self.peers}
        for uid, allowance in tuple(self._allowances.items()):
            allowance.fill(now_s)
            if uid not in here and allowance.is_full:
                del self._allowances[uid]
        made = self._allowances[pod_uid] = Allowance(filled_s=now_s)
        return made

    def _read(self, peer: Peer) -> None:
        assert self._loop is not None
        if not self._may_speak(peer):
            return
        try:
            packet, _, flags, _ = peer.connection.recvmsg(MOST_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            self._drop(peer)
            return
        if not packet:
            self._drop(peer)
            return
        try:
            if flags & socket.MSG_TRUNC:
                raise InvalidInput(f"a message has more than {MOST_BYTES} bytes")
            message = message_from(packet)
        except InvalidInput as error:
            self._count_fault(peer, error)
            return
        if message is not None:
            self._heard(peer, message)

    def _may_speak(self, peer: Peer) -> bool:
        """Take a token of its pod's; without one do not read this process for a moment."""
        assert self._loop is not None
        peer.allowance.fill(self._loop.time())
        if peer.allowance.tokens >= 1:
            peer.allowance.tokens -= 1
            return True
        self._loop.remove_reader(peer.connection)
        self._loop.call_later(WAIT_S, self._read_again, peer)
        return False

    def _read_again(self, peer: Peer) -> None:
        if peer in self.peers and self._loop is not None:
            self._loop.add_reader(peer.connection, self._read, peer)

    def _count_fault(self, peer: Peer, error: InvalidInput) -> None:
        self.faults += 1
        peer.faults += 1
        if peer.faults == 1:
            log.warning("process %d of the pod with uid %s: %s", peer.pid, peer.pod_uid, error)
        if peer.faults >= MOST_FAULTS:
            log.warning("process %d of the pod with uid %s is cut off: it talks nonsense", peer.pid, peer.pod_uid)
            self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        if peer not in self.peers:
            return
        self.peers.discard(peer)
        if self._loop is not None:
            self._loop.remove_reader(peer.connection)
        peer.connection.close()
        self._left(peer)


def _allow_open_files(most: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _has_ended(connection: socket.socket) -> bool:
    """True if the process that connected is gone: its pid may be another pod's by now. False on older kernels."""
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD)
    except OSError as error:
        return error.errno != errno.ENOPROTOOPT  # else the kernel has none for a process that was reaped
    try:
        ready = select.poll()  # select.select takes no descriptor above 1023
        ready.register(pidfd, select.POLLIN)
        return bool(ready.poll(0))
    finally:
        os.close(pidfd)
