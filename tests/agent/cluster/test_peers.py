"""Reading other nodes' NodeProfiles: seldom, few at a time, and slower while the API server is away."""

from __future__ import annotations

import asyncio

import pytest

from coda.errors import Outage
from coda_agent.cluster import Peers
from coda_agent.cluster.peers import AGAIN_S, AT_ONCE
from coda_kube.objects.json_types import Json
from tests.virtual_time import VirtualLoop


class Server:
    def __init__(self, *, away: bool = False) -> None:
        self.away = away
        self.reads: list[float] = []
        self.at_once = self.most_at_once = 0

    async def read(self, _node: str) -> Json | None:
        self.reads.append(asyncio.get_running_loop().time())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.1)
        self.at_once -= 1
        if self.away:
            raise Outage("the API server is away")
        return None


def asked_each_second(server: Server, nodes: int, seconds: int) -> Peers:
    async def ask() -> Peers:
        peers = Peers(server.read, asyncio.get_running_loop().time)
        for _ in range(seconds):
            for node in range(nodes):
                peers.ask(f"n{node}")
            await asyncio.sleep(1)
        await peers.cancel()
        return peers

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(ask())


def test_a_profile_is_read_every_five_seconds_at_most() -> None:
    server = Server()
    peers = asked_each_second(server, 1, 60)
    assert 10 <= len(server.reads) <= 60 / AGAIN_S
    assert peers.reports_of("n0") == ()
    assert peers.reports_of("n1") is None


def test_the_profiles_of_a_large_gang_are_read_a_few_at_a_time() -> None:
    server = Server()
    asked_each_second(server, 500, 9)
    assert server.most_at_once == AT_ONCE
    assert len(server.reads) >= 500


def test_while_the_api_server_is_away_reads_become_rare() -> None:
    server = Server(away=True)
    peers = asked_each_second(server, 1, 600)
    assert len(server.reads) <= 25
    assert peers.reports_of("n0") is None


class Garbling(Server):
    async def read(self, node: str) -> Json | None:
        await super().read(node)
        return {"status": {"ranks": {"not": "a list"}}}


def test_a_profile_that_is_garbage_is_read_again_later() -> None:
    server = Garbling()
    peers = asked_each_second(server, 1, 600)
    assert 5 <= len(server.reads) <= 25
    assert peers.reports_of("n0") is None


class Changing(Server):
    async def read(self, node: str) -> Json | None:
        await super().read(node)
        return {"status": {"ranks": [{}] * (1 + len(self.reads) // 10)}}


def test_reports_that_cannot_be_read_are_logged_when_their_number_changes(caplog: pytest.LogCaptureFixture) -> None:
    server = Changing()
    asked_each_second(server, 1, 130)
    assert 20 <= len(server.reads) <= 29
    assert [record.getMessage() for record in caplog.records if record.name == "coda_agent.cluster.peers"] == [
        f"{count} reports of ranks in the NodeProfile of n0 cannot be read: KeyError('jobUID')" for count in (1, 2, 3)
    ]


def test_nodes_that_no_job_is_on_any_more_are_forgotten() -> None:
    peers = asked_each_second(Server(), 3, 3)
    peers.forget_all_except({"n1"})
    assert [peers.reports_of(f"n{node}") for node in range(3)] == [None, (), None]
