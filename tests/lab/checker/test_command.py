"""`coda check` as a user types it, against a small HTTP API server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
import typer
import yaml
from aiohttp import web
from typer.testing import CliRunner

from coda_cli.check import check
from coda_kube.objects.json_types import Json
from coda_lab.checker.watch import Kind
from tests.lab.checker.checker_objects import FakeServer, job, node, pending, pod

app = typer.Typer()
app.command()(check)


class HttpServer:
    """A FakeServer behind a real socket, in a thread of its own."""

    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> int:
        server = web.Application()
        server.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(server)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def _answer(self, request: web.Request) -> web.Response:
        return web.json_response(await self._fake.list_pages(request.path))


def kubeconfig(folder: Path, port: int) -> str:
    path = folder / "kubeconfig"
    content: Json = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer()


@pytest.fixture
def server(fake: FakeServer) -> Iterator[HttpServer]:
    server = HttpServer(fake)
    yield server
    server.stop()


def test_says_in_one_line_that_nothing_is_broken(fake: FakeServer, server: HttpServer, tmp_path: Path) -> None:
    fake.put(Kind.NODE, node())
    fake.put(Kind.POD, pod())
    fake.put(Kind.JOB, job(pending=pending()))
    result = CliRunner().invoke(app, ["--kubeconfig", kubeconfig(tmp_path, server.port)])
    assert (result.exit_code, result.stdout) == (0, "no breach: 1 node, 1 pod, 1 job looked at\n")


def test_shows_breaches_and_exits_with_1(fake: FakeServer, server: HttpServer, tmp_path: Path) -> None:
    fake.put(Kind.NODE, node())
    fake.put(Kind.POD, pod("a", gpus=9))
    out = tmp_path / "report.json"
    result = CliRunner().invoke(
        app, ["--kubeconfig", kubeconfig(tmp_path, server.port), "--out", str(out)], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 1
    assert "node n1: bound pods ask for 9 nvidia.com/gpu, allocatable is 8" in result.stdout
    assert result.stdout.endswith("1 breach: 1 node, 1 pod, 0 jobs looked at\n")
    report = orjson.loads(out.read_bytes())
    assert [breach["objects"] for breach in report["breaches"]] == [["Node/n1", "Pod/ns/a"]]
    assert report["counts"]["confirmations"] == 1


@pytest.mark.parametrize(("form", "load"), [("json", orjson.loads), ("yaml", yaml.safe_load)])
def test_programs_read_the_report(
    form: str, load: Callable[[str], Json], fake: FakeServer, server: HttpServer, tmp_path: Path
) -> None:
    fake.put(Kind.NODE, node())
    fake.put(Kind.POD, pod("a", gpus=9))
    out, options = tmp_path / "report.json", ["--kubeconfig", kubeconfig(tmp_path, server.port)]
    result = CliRunner().invoke(app, [*options, "-o", form, "--out", str(out)])
    assert result.exit_code == 1
    assert load(result.stdout) == orjson.loads(out.read_bytes())


def test_a_cluster_that_does_not_answer_is_one_sentence_and_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--kubeconfig", kubeconfig(tmp_path, 1)])
    assert result.exit_code == 2
    assert result.stderr.startswith("coda: the cluster does not answer: GET /apis/coda.scheduler/v1alpha1/trainingjobs")
    assert result.stderr.count("\n") == 1


def test_a_report_that_could_not_be_written_is_said_before_looking(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--kubeconfig", str(tmp_path / "none"), "--out", str(tmp_path / "no" / "r.json")])
    assert result.exit_code == 2
    assert "the folder" in result.stderr
    assert "does not exist" in result.stderr
