"""The process behind `coda local up`: owns a cluster, restarts parts that end, and ends with it.

`python -m coda_lab.local.supervisor FOLDER SPEC` talks to the command that started it over its standard streams, one
JSON object a line. It reports each step, then `ready` or `failed`. The line `detach` allows it to live on. If its input
ends before, the command was interrupted, and nothing remains. SIGTERM ends it later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from coda.errors import CodaError
from coda_lab.host.errors import LabFailure
from coda_lab.host.file_lock import locked
from coda_lab.host.processes import ProcessId, kill_marked, readable, start_time_ticks
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.restarts import Restarter
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec

log = logging.getLogger("coda_lab.local.supervisor")

SPEC = TypeAdapter(ClusterSpec)


class PartState(BaseModel):
    """One process, as `coda local status` shows it. `pid` None: it ended and waits to be started again."""

    model_config = ConfigDict(frozen=True)

    name: str
    process: ProcessId | None
    started_s: float
    port: int
    ready_url: str | None
    log: Path
    restarts: int


class ClusterState(BaseModel):
    """The state file of a running cluster."""

    model_config = ConfigDict(frozen=True)

    supervisor: ProcessId
    server: str
    folder: Path
    kubectl: Path
    spec: ClusterSpec
    parts: tuple[PartState, ...]


def state_path(folder: Path) -> Path:
    """Where the state of the cluster in `folder` is written."""
    return folder / "state.json"


def lock_path(folder: Path) -> Path:
    """Held by the supervisor while it lives."""
    return folder / "lock"


class _Supervisor:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._restarter = Restarter(cluster, changed=self.write_state)

    async def keep_all(self) -> None:
        """Keep every part alive and the state file true, until cancelled."""
        await self._restarter.keep_all()

    def write_state(self) -> None:
        """Replace the state file in one step."""
        cluster = self._cluster
        state = ClusterState(
            supervisor=_own_id(),
            server=cluster.server,
            folder=cluster.layout.folder,
            kubectl=cluster.layout.kubectl,
            spec=cluster.spec,
            parts=tuple(self._part_state(name) for name in cluster.part_by_name),
        )
        path = state_path(cluster.layout.folder)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(state.model_dump_json(indent=1))
        unfinished.replace(path)

    def _part_state(self, name: str) -> PartState:
        part, process = self._cluster.part_by_name[name], self._cluster.process(name)
        assert process is not None
        return PartState(
            name=name,
            process=process.id if self._cluster.is_running(name) else None,
            started_s=process.started_s,
            port=part.port,
            ready_url=part.ready_url,
            log=self._cluster.log_path(name),
            restarts=self._restarter.restarts_by_part[name],
        )


async def _live(spec: ClusterSpec, folder: Path, ready: asyncio.Event) -> None:
    def tell(step: str) -> None:
        log.info(step.strip())
        _say({"step": step})

    async with running_cluster(spec, folder=folder, tell=tell) as cluster:
        supervisor = _Supervisor(cluster)
        supervisor.write_state()
        ready.set()
        await supervisor.keep_all()


async def _follow_lifeline() -> None:
    """Return when the command that started us is gone without having said `detach`."""
    said = b""
    while b"detach\n" not in said:
        await readable(0)
        chunk = os.read(0, 4096)
        if not chunk:
            return
        said += chunk
    _say({"detached": True})
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    await asyncio.Event().wait()


async def _supervise(spec: ClusterSpec, folder: Path) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    living = asyncio.create_task(_live(spec, folder, ready))
    others = [asyncio.create_task(wait) for wait in (_follow_lifeline(), stop.wait(), _announce(ready))]
    try:
        await asyncio.wait({living, *others[:2]}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (living, *others):
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    with contextlib.suppress(asyncio.CancelledError):
        await living


async def _announce(ready: asyncio.Event) -> None:
    await ready.wait()
    _say({"ready": True})


def _say(message: dict[str, object]) -> None:
    with contextlib.suppress(BrokenPipeError):  # our input ends: nobody listens
        os.write(1, json.dumps(message).encode() + b"\n")


def _own_id() -> ProcessId:
    return ProcessId(pid=os.getpid(), started_ticks=start_time_ticks(os.getpid()) or 0)


def _open_log(folder: Path) -> None:
    path = folder / "logs" / "supervisor.log"
    path.parent.mkdir()
    with path.open("ab") as sink:
        os.dup2(sink.fileno(), 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _clear(folder: Path) -> None:
    """Remove the remains of a supervisor that was killed."""
    kill_marked(str(folder))
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != lock_path(folder):
            path.unlink()


def main() -> int:
    """Supervise FOLDER; 1 when the cluster could not be brought up, which is reported as `failed`."""
    folder, spec = Path(sys.argv[1]), SPEC.validate_json(sys.argv[2])
    try:
        with locked(lock_path(folder), wait=False):
            _clear(folder)
            _open_log(folder)
            asyncio.run(_supervise(spec, folder))
    except CodaError as error:
        _say({"failed": str(error)})
        return 1
    except OSError as error:
        _say({"failed": str(LabFailure(f"{folder} cannot be used: {error.strerror}."))})
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
