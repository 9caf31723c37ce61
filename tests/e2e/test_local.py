"""`coda local`, as people use it and as they interrupt it: nothing is ever left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from coda_kube.api.client import Rejected
from coda_lab.host.client_tls import client_context
from coda_lab.host.errors import LabFailure
from coda_lab.host.paths import Settings
from coda_lab.host.ports import LOOPBACK
from coda_lab.host.processes import python_path
from coda_lab.local.named_clusters import read_state
from coda_lab.local.startup import running_cluster
from coda_lab.local.supervisor import ClusterState
from coda_lab.programs.control_plane import ensure_shown
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import PATIENCE_S
from tests.e2e.scheduling import QUICK_LEASE

pytestmark = pytest.mark.e2e

LEADER = {"labelSelector": "coda.scheduler/leader=true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """`coda local` with a cache of its own, in which the built programs and etcd's first state are the real one's."""

    environ: dict[str, str]
    folder: Path

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "coda_cli", "local", *words],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        command = self.start(*words)
        out, err = command.communicate(timeout=180)
        return command.returncode, out, err

    def state(self) -> ClusterState:
        state = read_state(self.folder)
        assert state is not None
        return state


@pytest.fixture
def coda_local(tmp_path: Path) -> Iterator[CommandLine]:
    settings = Settings.from_environ()
    ensure_shown(settings)
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("kube", "first-state"):
        (settings.cache / name).mkdir(exist_ok=True)
        (cache / name).symlink_to(settings.cache / name)
    environ = {**settings.environ, "CODA_CACHE_DIR": str(cache), "PYTHONPATH": python_path()}
    command = CommandLine(environ=environ, folder=cache / "local" / "default")
    yield command
    command.run("down")
    assert processes_of(command.folder) == {}


def processes_of(folder: Path) -> dict[int, str]:
    """Command lines of the processes that name `folder` in their arguments or environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError):
            arguments = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if arguments and str(folder).encode() in arguments + (entry / "environ").read_bytes():
                found[int(entry.name)] = arguments.replace(b"\0", b" ").decode()
    return found


async def all_gone(folder: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while processes_of(folder) or is_there(folder):
            await asyncio.sleep(0.05)


def is_there(folder: Path) -> bool:
    return folder.exists()


def test_up_status_second_up_and_down(coda_local: CommandLine) -> None:
    code, out, err = coda_local.run("up", "--nodes", "3x8x48", "--no-coda")
    assert (code, err) == (0, "")
    assert "3 simulated nodes are ready" in out
    state = coda_local.state()

    kubectl = [str(state.kubectl), "get", "nodes", "-o", "jsonpath={.items[*].spec.taints}{.items[*].metadata.name}"]
    nodes = subprocess.run(kubectl, env=coda_local.environ, capture_output=True, text=True, check=True).stdout
    assert nodes.split() == ["node-0000", "node-0001", "node-0002"]

    code, out, err = coda_local.run("status")
    assert code == 0
    for part in state.parts:
        assert part.process is not None
        assert re.search(rf"^{part.name} +{part.process.pid} +{part.port} +yes", out, re.MULTILINE)
    told = json.loads(coda_local.run("status", "-o", "json")[1])
    assert told["server"] == state.server
    assert {part["name"]: part["ready"] for part in told["parts"]} == {part.name: True for part in state.parts}

    code, _, err = coda_local.run("up", "--no-coda")
    assert code == 1
    assert err.startswith("coda: The local control plane 'default' is already up: ")
    assert err.count("\n") == 1
    assert coda_local.run("status")[0] == 0

    code, out, _ = coda_local.run("down")
    assert (code, out) == (0, "The local control plane 'default' is down; nothing of it is left.\n")
    assert processes_of(coda_local.folder) == {}
    assert not coda_local.folder.exists()
    assert coda_local.run("down") == (0, "There is no local control plane 'default'.\n", "")
    assert coda_local.run("status")[0] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_an_interrupted_up_leaves_nothing_behind(coda_local: CommandLine, number: signal.Signals) -> None:
    command = coda_local.start("up")
    assert command.stdout is not None
    assert any("the API server answers" in line for line in command.stdout)
    assert len(processes_of(coda_local.folder)) >= 3  # supervisor, etcd, API server
    command.send_signal(number)
    _, err = command.communicate(timeout=30)
    assert command.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 130)
    assert err == ""
    await all_gone(coda_local.folder)


async def test_the_first_cluster_of_a_machine_keeps_its_first_state_unless_it_is_interrupted(
    coda_local: CommandLine,
) -> None:
    (kept := coda_local.folder.parents[1] / "first-state").unlink()
    command = coda_local.start("up", "--nodes", "", "--no-coda")
    async with asyncio.timeout(PATIENCE_S):
        while not any("kube-controller-manager" in words for words in processes_of(coda_local.folder).values()):
            await asyncio.sleep(0.05)
    command.send_signal(signal.SIGTERM)
    command.communicate(timeout=30)
    await all_gone(coda_local.folder)
    assert not list(kept.glob("*/member"))

    code, out, err = coda_local.run("up", "--nodes", "", "--no-coda")
    assert (code, err) == (0, "")
    assert "definitions and roles are installed, and kept for later clusters" in out
    assert len(list(kept.glob("*/member/snap/db"))) == 1


async def test_a_killed_supervisor_takes_all_with_it_and_the_next_up_works(coda_local: CommandLine) -> None:
    assert coda_local.run("up", "--nodes", "", "--no-coda")[0] == 0
    before = coda_local.state()
    pinned = [os.pidfd_open(part.process.pid) for part in before.parts if part.process]
    os.kill(before.supervisor.pid, signal.SIGKILL)
    for descriptor in pinned:
        assert select.select([descriptor], [], [], PATIENCE_S)[0] == [descriptor]
        os.close(descriptor)
    assert processes_of(coda_local.folder) == {}
    assert coda_local.run("status")[0] == 1
    assert coda_local.run("up", "--nodes", "", "--no-coda")[0] == 0
    assert coda_local.state().supervisor != before.supervisor


async def test_a_part_that_is_killed_is_started_again(coda_local: CommandLine) -> None:
    assert coda_local.run("up", "--nodes", "1x8x16", "--racks", "1", "--no-coda", "--agents", "all")[0] == 0
    for killed in ("kube-scheduler", "agent-0"):
        before = next(part for part in coda_local.state().parts if part.name == killed)
        assert before.process is not None
        os.kill(before.process.pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while coda_local.run("status")[0] != 0 or before in coda_local.state().parts:
                await asyncio.sleep(0.2)
        after = next(part for part in coda_local.state().parts if part.name == killed)
        assert (after.restarts, after.port) == (1, before.port)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        pytest.param(["--nodes", "8y8"], "coda: --nodes: '8y8'", id="bad nodes"),
        pytest.param(["--nodes", "1x8x48", "--racks", "2"], "coda: --racks 2: ", id="more racks than nodes"),
        pytest.param(["--nodes", "2x8x48", "--agents", "3"], "coda: --agents 3: ", id="more agents than nodes"),
        pytest.param(["--agents", "some"], "coda: --agents 'some': ", id="no number of agents"),
        pytest.param(["--name", "No Name"], "coda: --name 'No Name': ", id="bad name"),
    ],
)
def test_a_wrong_option_is_one_sentence(coda_local: CommandLine, options: list[str], sentence: str) -> None:
    code, out, err = coda_local.run("up", *options)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(sentence)


def test_a_port_in_use_is_one_sentence_and_leaves_nothing(coda_local: CommandLine) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = coda_local.run("up", "--no-coda", "--port", str(port))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"coda: Port {port} on {LOOPBACK} cannot be used")
    assert not coda_local.folder.exists()


async def test_a_part_that_cannot_start_is_named_with_the_end_of_its_log(coda_local: CommandLine) -> None:
    settings = Settings.from_environ(coda_local.environ)
    broken = {"forwarder": {"PYTHONHOME": "/nonexistent"}}
    spec = ClusterSpec(nodes="", extenders=0, operators=0, environ_by_part=broken)
    folder = coda_local.folder
    with pytest.raises(LabFailure, match=r"^forwarder ended with exit code 1 while starting forwarder\.") as failure:
        async with running_cluster(spec, tell=print, settings=settings, folder=folder):
            raise AssertionError("it came up")
    assert "Fatal Python error" in str(failure.value)
    assert failure.value.log is not None
    assert failure.value.log.exists()
    await all_gone(folder)


async def test_identities_may_do_what_their_part_does_and_no_more() -> None:
    job = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "a"}}
    job["spec"] = {"gpusPerReplica": 1, "template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}
    jobs = "/apis/coda.scheduler/v1alpha1/namespaces/default/trainingjobs"
    async with running_cluster(ClusterSpec(nodes="", coda=False), tell=print) as cluster:
        async with cluster.client("user") as user:
            await user.create(jobs, job)
            await user.patch(f"{jobs}/a", {"spec": {"suspend": True}})
            await refused(user.patch(f"{jobs}/a/status", {"status": {"phase": "Running"}}))
            await refused(user.delete("/api/v1/nodes/x"))
        async with cluster.client("extender") as extender:
            await extender.get(f"{jobs}/a")
            await extender.get("/api/v1/nodes")
            await refused(extender.delete(f"{jobs}/a"))
            await refused(extender.delete("/api/v1/namespaces/default/pods/x"))
            await refused(extender.get("/api/v1/secrets"))
        async with cluster.client("operator") as operator:
            await operator.get("/api/v1/pods")
            await refused(operator.delete("/api/v1/nodes/x"))
            await refused(operator.get("/api/v1/secrets"))
        async with cluster.client("agent") as agent:
            await agent.get("/api/v1/pods")
            await agent.get(f"{jobs}/a")
            await refused(agent.delete("/api/v1/namespaces/default/pods/x"))
            await refused(agent.patch(f"{jobs}/a", {"spec": {"suspend": False}}))
            await refused(agent.get("/api/v1/secrets"))
        async with cluster.client("kubelets") as kubelets:
            await kubelets.get("/api/v1/nodes")
            await kubelets.get(f"{jobs}/a")
            await refused(kubelets.patch(f"{jobs}/a", {"spec": {"suspend": False}}))


async def refused(request: object) -> None:
    with pytest.raises(Rejected) as rejected:
        await request  # type: ignore[misc]  # a coroutine of any result
    assert rejected.value.status == 403


async def test_the_forwarder_follows_the_leader() -> None:
    quick = dict.fromkeys(("extender-0", "extender-1"), QUICK_LEASE)
    spec = ClusterSpec(nodes="", operators=0, environ_by_part=quick)
    async with running_cluster(spec, tell=print) as cluster:
        url = f"https://{LOOPBACK}:{cluster.ports['forwarder']}/filter"
        connector = aiohttp.TCPConnector(ssl=client_context(cluster.layout.tls("kube-scheduler")))
        async with aiohttp.ClientSession(connector=connector) as session, cluster.client() as admin:
            assert await answers(session, url)
            pods = await admin.list_pages("/api/v1/namespaces/coda-system/pods", LEADER)
            (leader,) = [pod["metadata"]["name"].removeprefix("coda-") for pod in pods["items"]]
            await cluster.kill(leader)
            async with asyncio.timeout(PATIENCE_S):
                while not await answers(session, url):
                    await asyncio.sleep(0.1)
            assert not cluster.is_running(leader)
            await cluster.start(leader)
            assert cluster.is_running(leader)


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as answer:
            return answer.status == 405  # it answers questions only, but it is there
    except aiohttp.ClientError:
        return False
