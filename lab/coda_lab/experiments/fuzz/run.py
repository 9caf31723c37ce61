"""One run: a small cluster with a leading extender, everything hostile at once, an honest client beside it, a
report.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from coda_lab.experiments.fuzz.hostile_requests import hostile_requests
from coda_lab.experiments.fuzz.report import PARTS, WARM_UP, Options, Outcome
from coda_lab.experiments.fuzz.sender import PATIENCE_S, Sender
from coda_lab.host.client_tls import client_context
from coda_lab.host.processes import dies_with, python_command, python_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.startup import running_cluster
from coda_lab.spec import SCHEDULER, ClusterSpec, Tell

EXTENDER = "extender-0"
SPEC = ClusterSpec(nodes="16x8x48", racks=2, extenders=1, operators=0)

_WORKERS = 12
_WARM_UP_SHARE = 0.2
_LEAST_WARM_UP = 1000
_SETTLED_S = 12.0  # the extender collects its garbage every 10 s
_QUIET_S = 2.0
_HELD_SHARE = 0.85
_HELD_WITHIN_S = 60.0


async def run(options: Options, tell: Tell) -> Outcome:
    """Attack a fresh cluster's extender; its cluster is gone afterwards. Raises LabFailure."""
    async with running_cluster(SPEC, tell=tell) as cluster:
        return await attack(cluster, options, tell)


async def attack(cluster: LocalCluster, options: Options, tell: Tell) -> Outcome:
    """Attack the extender of a running cluster, straight at its port."""
    sender = Sender(cluster.ports[EXTENDER], client_context(cluster.layout.tls(SCHEDULER)))
    outcome = Outcome(options=options, sender=sender)
    process = cluster.process(EXTENDER)
    assert process is not None
    requests = hostile_requests(options.seed, options.count)
    warm_up = min(options.count, max(_LEAST_WARM_UP, int(options.count * _WARM_UP_SHARE)))
    shares = {name: (options.count - warm_up + place) // len(PARTS) for place, name in enumerate(PARTS)}
    async with _honest(cluster, outcome, "quiet"):
        await asyncio.sleep(_QUIET_S)
    for part, many in {WARM_UP: warm_up, **shares}.items():
        tell(f"{part}: {many} requests, {options.connections} connections held")
        async with _honest(cluster, outcome, part), _held(outcome):
            began_s = time.monotonic()
            portion = itertools.islice(requests, many)
            await asyncio.gather(*(sender.work(portion) for _ in range(_WORKERS)))
            outcome.took_s += time.monotonic() - began_s
        if not process.id.is_alive():
            outcome.restarted = True
            break
        await asyncio.sleep(_SETTLED_S)
        outcome.memory_by_part_bytes[part] = memory_bytes(process.id.pid, "VmRSS")
        outcome.memory_peak_bytes = memory_bytes(process.id.pid, "VmHWM")
    outcome.tracebacks = cluster.log_path(EXTENDER).read_text(errors="replace").count("Traceback")
    return outcome


@asynccontextmanager
async def _held(outcome: Outcome) -> AsyncIterator[None]:
    """While the block lasts, hold the connections, and count them twice a second. It begins when most are held."""
    options, sender = outcome.options, outcome.sender
    holders = [asyncio.create_task(sender.hold(number, options.seed)) for number in range(options.connections)]
    counting = asyncio.create_task(_count_held(outcome))
    try:
        with contextlib.suppress(TimeoutError):  # the report tells how many there were
            async with asyncio.timeout(_HELD_WITHIN_S):
                await sender.holds(_HELD_SHARE * options.connections)
        yield
    finally:
        for task in (counting, *holders):
            task.cancel()
        await asyncio.gather(counting, *holders, return_exceptions=True)


async def _count_held(outcome: Outcome) -> None:
    while True:
        await asyncio.sleep(0.5)
        outcome.connections_held.append(outcome.sender.held.total())


@asynccontextmanager
async def _honest(cluster: LocalCluster, outcome: Outcome, part: str) -> AsyncIterator[None]:
    """While the block lasts, a scheduler in a process of its own asks the same port and checks the answers."""
    async with cluster.client() as api:
        names = sorted(str(node["metadata"]["name"]) for node in (await api.list_pages("/api/v1/nodes"))["items"])
    argv = python_command("coda_lab.experiments.fuzz.honest_client", *asker_words(cluster), *names)
    asker = await asyncio.create_subprocess_exec(
        *argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": python_path()},
        preexec_fn=dies_with(os.getpid()),
    )
    try:
        yield
        said, _ = await asyncio.wait_for(asker.communicate(b""), PATIENCE_S)
    except BaseException:
        if asker.returncode is None:
            asker.kill()
        await asker.wait()
        raise
    outcome.honest_by_part[part] = json.loads(said)


def asker_words(cluster: LocalCluster) -> tuple[str, str]:
    """The port, and the folder of the scheduler's certificate."""
    return str(cluster.ports[EXTENDER]), str(cluster.layout.tls(SCHEDULER))


def memory_bytes(pid: int, field_name: str) -> int:
    """A field of the process's status: VmRSS, VmHWM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field_name}:"))
