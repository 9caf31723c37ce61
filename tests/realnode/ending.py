"""Ends a run of tests at once when the virtual machine under them ends or is stuck: no test can tell anything then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from _pytest.outcomes import Exit

from coda_lab.host.errors import last_lines
from coda_lab.host.paths import Settings
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.startup import running_cluster
from coda_lab.realnode.stuck import CONSOLE, LOG
from coda_lab.spec import REAL_NODE, ClusterSpec

SHOWN = {LOG: 40, CONSOLE: 120}  # lines: qemu's threads, and what the kernel said first


class MachineEnded(Exit, KeyboardInterrupt):
    """Ends pytest from within a task: pytest takes the first's exit code, and asyncio lets only the second kind pass.

    The code is EX_TEMPFAIL of sysexits.h, on which `make chain` tries again.
    """


@asynccontextmanager
async def real_cluster(spec: ClusterSpec) -> AsyncIterator[LocalCluster]:
    """A running cluster with a real node, without which the run of tests does not go on."""
    async with running_cluster(spec, tell=print) as cluster:
        watching = asyncio.create_task(_end_with_machine(cluster))
        try:
            yield cluster
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def _end_with_machine(cluster: LocalCluster) -> None:
    owner = cluster.process(REAL_NODE)
    assert owner is not None
    await owner.ended()
    kept = Settings.from_environ().cache / "failed"
    said = [last_lines(cluster.log_path(REAL_NODE), 20)]
    if LOG in said[0]:  # it was stuck: else these are of an earlier one
        said += [_first_lines(kept / name, lines) for name, lines in SHOWN.items()]
    raise MachineEnded("\n\n".join(said), os.EX_TEMPFAIL)


def _first_lines(log: Path, count: int) -> str:
    """Nothing if there is no log."""
    if not log.exists():
        return ""
    first = log.read_text(errors="replace").splitlines()[:count]
    return "\n".join((f"The beginning of {log}:", *first))
