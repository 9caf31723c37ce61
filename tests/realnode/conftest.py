"""What the real node needs from the machine, and what is shown of it when a test fails there.

With CODA_REQUIRE_RIGS=1 lacking something is a failure.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coda_lab.host.errors import LabFailure, last_lines
from coda_lab.host.paths import Settings
from coda_lab.local.cluster import LocalCluster
from coda_lab.realnode.artifacts import missing_programs
from coda_lab.realnode.node import CONTAINERD, GPU_PLUGIN, KUBELET, RealNode
from tests.rigs import need

SHOWN_LINES = 60
ASKED = {
    "the real node's load and memory": ("/usr/bin/head", "-n", "3", "/proc/loadavg", "/proc/meminfo"),
    "the ends of its containers' logs": ("/bin/sh", "-c", "tail -n 20 /var/log/pods/*/*/*.log"),
}
STUCK = "syncLoop"  # the kubelet's loop over pods, in what an aborted kubelet writes of its goroutines


@pytest.fixture(scope="session")
def needs_vm() -> None:
    need(os.geteuid() == 0, "root")
    missing = missing_programs(Settings.from_environ())
    need(not missing, f"{', '.join(missing)} (make node)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the node's logs to the report of a failure, while there is a node: not after the teardown."""
    report = yield
    if report.failed and report.when != "teardown":
        given = getattr(item, "funcargs", {})
        cluster = given.get("cluster")
        node = given.get("node") or (cluster.real_node if isinstance(cluster, LocalCluster) else None)
        if isinstance(node, RealNode):
            report.sections += sections(node)
    return report


def sections(node: RealNode) -> list[tuple[str, str]]:
    """What there is to see of the node, by title."""
    logs = {name: node.log(name) for name in (KUBELET, CONTAINERD, GPU_PLUGIN)}
    logs |= {name: node.folder / f"{name}.log" for name in ("console", "qemu")}
    shown = [(f"the real node's {name}.log", last_lines(log, SHOWN_LINES)) for name, log in logs.items()]
    if logs[KUBELET].exists():
        goroutines = logs[KUBELET].read_text(errors="replace").split("\n\n")
        shown += [
            ("where the kubelet was stuck", each) for each in goroutines if STUCK in each and "goroutine " in each
        ]
    with ThreadPoolExecutor(1) as thread:  # the tests' own event loop is not running, but is this thread's
        shown += [(title, thread.submit(asyncio.run, said(node, *words)).result()) for title, words in ASKED.items()]
    return shown


async def said(node: RealNode, *words: str) -> str:
    """What a command prints there, or why the node does not answer."""
    try:
        return (await node.run(*words, timeout_s=20.0)).out
    except LabFailure as failure:
        return str(failure)
