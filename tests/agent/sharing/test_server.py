"""The socket on the node, and jobs that mean harm. Connections are real; the test tells the pod of a process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coda.errors import InvalidInput
from coda_agent.sharing import GpuOrder, SharedGpus
from coda_agent.sharing.messages import MOST_BYTES, Message
from coda_agent.sharing.server import (
    AWAY_S,
    BURST,
    CONNECTS_BURST,
    CONNECTS_PER_S,
    FEW_PER_POD,
    MOST_CONNECTIONS,
    MOST_FAULTS,
    MOST_PER_POD,
    OPEN_FILES,
    RATE_PER_S,
    Peer,
    SharingServer,
)
from tests.open_files import many_open_files

WORD = json.dumps({"v": 1, "type": "beat"}).encode()


@dataclass
class Heard:
    pod: str | None = "victim"
    joined: list[Peer] = field(default_factory=list)
    left: list[Peer] = field(default_factory=list)
    messages: list[tuple[Peer, Message]] = field(default_factory=list)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def server(heard: Heard, tmp_path: Path) -> AsyncIterator[SharingServer]:
    def pod_uid_of(pid: int) -> str | None:
        assert pid == os.getpid()  # the kernel's word
        return heard.pod

    made = SharingServer(
        tmp_path / "run" / "agent.sock",
        pod_uid_of,
        joined=heard.joined.append,
        heard=lambda peer, message: heard.messages.append((peer, message)),
        left=heard.left.append,
    )
    made.start()
    yield made
    made.stop()


@pytest.fixture
async def job(server: SharingServer, tmp_path: Path) -> AsyncIterator[socket.socket]:
    one = connect(tmp_path)
    yield one
    one.close()


def connect(tmp_path: Path) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    one.connect(str(tmp_path / "run" / "agent.sock"))
    return one


@contextlib.contextmanager
def open_files(most: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def turn() -> None:
    """Let the loop serve what has come."""
    for _ in range(5):
        await asyncio.sleep(0)


async def flooded(one: socket.socket, packet: bytes, count: int) -> int:
    """How many went out."""
    sent = 0
    for _ in range(count):
        try:
            one.send(packet)
        except BlockingIOError:
            pass
        except OSError:
            break
        else:
            sent += 1
        await asyncio.sleep(0)
    return sent


async def test_a_process_is_known_by_the_kernels_word_and_heard(heard: Heard, job: socket.socket) -> None:
    job.send(json.dumps({"v": 1, "type": "steps", "pid": 1, "pod": "another", "s": [0.5]}).encode())
    await turn()
    ((peer, message),) = heard.messages
    assert (peer.pod_uid, peer.pid, message.steps) == ("victim", os.getpid(), (0.5,))


async def test_a_process_of_no_pod_is_refused(heard: Heard, server: SharingServer, tmp_path: Path) -> None:
    heard.pod = None
    one = connect(tmp_path)
    await turn()
    assert one.recv(1) == b""
    assert (server.refused, heard.joined) == (1, [])
    one.close()


async def test_an_agent_with_more_than_1024_open_files_hears_newcomers(
    heard: Heard, server: SharingServer, tmp_path: Path
) -> None:
    with many_open_files():
        one = connect(tmp_path)
        one.send(WORD)
        await turn()
        assert len(heard.messages) == 1
        one.close()
        await turn()
    assert heard.left == heard.joined


async def test_a_flood_is_read_at_its_rate(heard: Heard, job: socket.socket) -> None:
    await turn()
    began_s = time.monotonic()
    assert await flooded(job, WORD, 5000) > BURST
    assert BURST <= len(heard.messages) <= most_since(began_s)
    assert heard.left == []


async def test_more_connections_are_no_more_messages(heard: Heard, server: SharingServer, tmp_path: Path) -> None:
    """Each of them costs the agent the time in which it would hear others."""
    began_s = time.monotonic()
    for connections in (8, 8):  # and those that come again find what those before have left
        many = [connect(tmp_path) for _ in range(connections)]
        for _ in range(100):
            for one in many:
                with contextlib.suppress(BlockingIOError):
                    one.send(WORD)
            await asyncio.sleep(0)
        for one in many:
            one.close()
        await turn()
    assert BURST <= len(heard.messages) <= most_since(began_s)


def most_since(began_s: float) -> float:
    """How many messages a pod may have been heard with."""
    return BURST + RATE_PER_S * (time.monotonic() - began_s) + 1


async def test_a_flood_does_not_keep_others_from_being_heard(heard: Heard, job: socket.socket, tmp_path: Path) -> None:
    await turn()
    heard.pod = "another"
    other = connect(tmp_path)
    await flooded(job, WORD, 2000)
    heard.messages.clear()
    other.send(WORD)
    await turn()
    assert [peer for peer, _ in heard.messages if peer is heard.joined[1]]
    other.close()


async def test_whoever_talks_nonsense_is_cut_off(heard: Heard, server: SharingServer, job: socket.socket) -> None:
    await turn()
    for packet in (b"x" * (MOST_BYTES + 5), *[b'{"v":1,"type":"st'] * (MOST_FAULTS - 1)):
        heard.joined[0].allowance.tokens = BURST  # as if it took its time
        assert await flooded(job, packet, 1) == 1
        await turn()
    assert heard.left == heard.joined
    assert (server.faults, server.peers) == (MOST_FAULTS, set())


async def test_a_pod_has_so_many_connections_and_no_more(heard: Heard, server: SharingServer, tmp_path: Path) -> None:
    many = []
    for _ in range(MOST_PER_POD + 5):
        many.append(connect(tmp_path))
        await turn()
    assert (len(heard.joined), server.refused) == (MOST_PER_POD, 5)
    for one in many:
        one.close()
    await turn()
    assert len(heard.left) == MOST_PER_POD


async def test_many_that_come_at_once_are_heard_in_one_turn(
    heard: Heard, server: SharingServer, tmp_path: Path
) -> None:
    """Else a flood of connections keeps the queue full, and whoever comes next finds no place in it."""
    many = [connect(tmp_path) for _ in range(MOST_PER_POD)]
    await turn()
    assert len(heard.joined) == len(many)
    for one in many:
        one.close()


async def test_a_pod_that_connects_again_and_again_is_turned_away(
    heard: Heard, server: SharingServer, tmp_path: Path
) -> None:
    began_s = time.monotonic()
    for _ in range(2000):
        connect(tmp_path).close()
        await turn()
    most = CONNECTS_BURST + CONNECTS_PER_S * (time.monotonic() - began_s) + 1
    assert CONNECTS_BURST <= len(heard.joined) <= most
    heard.pod = "another"
    await asyncio.sleep(1.5 * AWAY_S)  # the kernel gives this process's pid to a process of that pod
    one = connect(tmp_path)
    one.send(WORD)
    await turn()
    assert heard.messages[-1][0].pod_uid == "another"
    one.close()


async def test_whoever_is_turned_away_costs_no_look_at_its_pod(
    heard: Heard, server: SharingServer, tmp_path: Path
) -> None:
    for _ in range(int(CONNECTS_BURST) + 5):
        connect(tmp_path).close()
        await turn()
    heard.pod = "another"  # would be let in, if anybody looked
    joined = len(heard.joined)
    connect(tmp_path).close()
    await turn()
    assert len(heard.joined) == joined


async def test_a_pod_with_few_connections_is_let_in_however_many_others_have(
    heard: Heard, server: SharingServer, tmp_path: Path
) -> None:
    """Guests that connect and are silent do not keep out the job that asks for its memory."""
    many = []
    with open_files(OPEN_FILES):  # of this process, which is both ends
        for number in range(MOST_CONNECTIONS // MOST_PER_POD + 1):
            heard.pod = f"guest-{number}"
            many += [connect(tmp_path) for _ in range(MOST_PER_POD)]
            await turn()
        joined = len(heard.joined)
        assert joined == MOST_CONNECTIONS + FEW_PER_POD
        heard.pod = "owner"
        many += [connect(tmp_path) for _ in range(FEW_PER_POD + 1)]
        await turn()
        assert [peer.pod_uid for peer in heard.joined[joined:]] == ["owner"] * FEW_PER_POD
        for one in many:
            one.close()
        await turn()
        assert server.peers == set()


async def test_an_order_to_a_process_that_does_not_read_is_lost(server: SharingServer, job: socket.socket) -> None:
    await turn()
    (peer,) = server.peers
    outcomes = [server.send(peer, {"v": 1, "filler": "x" * 1000}) for _ in range(2000)]
    assert outcomes[0]
    assert not outcomes[-1]
    assert server.peers == {peer}


async def test_a_process_that_ended_is_gone(heard: Heard, server: SharingServer, job: socket.socket) -> None:
    await turn()
    job.close()
    await turn()
    assert heard.left == heard.joined


async def test_an_agent_that_may_have_few_open_files_raises_that_for_its_connections(tmp_path: Path) -> None:
    """A container's soft limit may be 1024, which those of sixteen guests use up."""
    with open_files(1024):
        server = SharingServer(tmp_path / "s", lambda _: None, joined=print, heard=lambda *_: None, left=print)
        server.start()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        server.stop()
        assert soft == (OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard))


async def test_the_socket_of_an_earlier_agent_is_replaced(server: SharingServer, tmp_path: Path) -> None:
    again = SharingServer(
        tmp_path / "run" / "agent.sock", lambda _: None, joined=print, heard=lambda *_: None, left=print
    )
    again.start()
    again.stop()


async def test_a_folder_that_became_read_only_does_not_keep_it_from_ending(
    server: SharingServer, job: socket.socket, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    await turn()
    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", refuse)
        server.stop()
    assert (len(heard.left), server.peers) == (1, set())


async def test_a_path_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    server = SharingServer(tmp_path / "file" / "s", lambda _: None, joined=print, heard=lambda *_: None, left=print)
    with pytest.raises(InvalidInput, match="no socket can be made there"):
        server.start()


class Ordering:
    """A coordinator that always orders the same."""

    problems = ()

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._peers: list[Hashable] = []
        self.answers: dict[Hashable, bool] = {}

    def join(self, peer: Hashable, _: str) -> None:
        self._peers.append(peer)

    def leave(self, peer: Hashable) -> None:
        self._peers.remove(peer)

    def round(self, _gpus: object, _now_s: float) -> dict[Hashable, tuple[GpuOrder, ...]]:
        order = GpuOrder(
            gpu="GPU-1", share=500, device_bytes=None, alone=False, drain=False, hold_s=self._hold_s, chunk_s=0.005
        )
        return dict.fromkeys(self._peers, (order,))


@pytest.mark.parametrize(("hold_s", "sent_s"), [(60.0, [0, 10, 20]), (0.0, [0, 10, 20]), (3.0, list(range(21)))])
async def test_an_order_is_repeated_well_before_its_hold_ends(hold_s: float, sent_s: list[int], tmp_path: Path) -> None:
    now_s = 0.0
    shared = SharedGpus(tmp_path / "run" / "agent.sock", lambda _: "pod", lambda: now_s, Ordering(hold_s))  # type: ignore[arg-type]
    shared.start()
    one = connect(tmp_path)
    await turn()
    heard_s = []
    for second in range(21):
        now_s = float(second)
        shared.decide(())
        with contextlib.suppress(BlockingIOError):
            assert json.loads(one.recv(4096))["share"] == 500
            heard_s.append(second)
    one.close()
    shared.stop()
    assert heard_s == sent_s


async def test_who_was_refused_memory_is_answered_in_each_round(tmp_path: Path) -> None:
    ordering = Ordering(0.0)
    shared = SharedGpus(tmp_path / "run" / "agent.sock", lambda _: "pod", lambda: 0.0, ordering)  # type: ignore[arg-type]
    shared.start()
    one = connect(tmp_path)
    await turn()
    shared.decide(())
    assert json.loads(one.recv(4096))["type"] == "order"
    for waits in (True, True, False):
        ordering.answers = dict.fromkeys(shared.server.peers, waits)
        shared.decide(())
        assert json.loads(one.recv(4096)) == {"v": 1, "type": "answer", "wait": waits}
    one.close()
    shared.stop()
