"""Clusters with a name that outlive the command that made them: up, status, down. The logic of `coda local`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from coda.errors import InvalidInput
from coda_lab.host.errors import LabFailure
from coda_lab.host.file_lock import is_locked
from coda_lab.host.paths import Settings
from coda_lab.host.processes import MARK, kill_marked, python_command, python_path
from coda_lab.local.cluster import answers_ok
from coda_lab.local.supervisor import SPEC, ClusterState, PartState, lock_path, state_path
from coda_lab.programs.control_plane import ensure_shown
from coda_lab.realnode.artifacts import ensure_node
from coda_lab.spec import ClusterSpec, Tell

_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,39}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHealth:
    """A part as it is now."""

    part: PartState
    alive: bool
    ready: bool


def folder_of(name: str, settings: Settings) -> Path:
    """The folder of the cluster `name`. Raises InvalidInput for a bad name."""
    if not _NAME.match(name):
        raise InvalidInput(f"--name {name!r}: up to 40 of a-z, 0-9 and '-', starting with a letter or digit.")
    return settings.cache / "local" / name


def up(name: str, spec: ClusterSpec, settings: Settings, tell: Tell) -> ClusterState:
    """Bring up the cluster `name` and leave it running. Raises CodaError; then, or if interrupted, nothing remains."""
    spec.check()  # before anything is built
    folder = folder_of(name, settings)
    if is_locked(lock_path(folder)):
        raise LabFailure(
            f"The local control plane {name!r} is already up: see `coda local status`, end it with `coda local down`, "
            "or give the new one another --name."
        )
    ensure_shown(settings)
    if spec.real_node_cores:
        ensure_node(settings, tell)
    command = python_command("coda_lab.local.supervisor", str(folder), SPEC.dump_json(spec).decode())
    environ = {**settings.environ, MARK: str(folder), "PYTHONPATH": python_path()}
    supervisor = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, cwd="/", start_new_session=True
    )
    try:
        _follow(supervisor, tell)
    except BaseException:
        supervisor.kill()
        supervisor.wait()
        _remove(folder)
        raise
    finally:
        for stream in (supervisor.stdin, supervisor.stdout):
            assert stream is not None
            stream.close()
    supervisor.returncode = 0  # it lives on: nothing for this process to wait for
    state = read_state(folder)
    if state is None:
        raise LabFailure(f"The local control plane {name!r} ended as soon as it was up.")
    return state


def down(name: str, settings: Settings) -> bool:
    """End the cluster `name` and remove its files; False when there was nothing."""
    return _remove(folder_of(name, settings))


def read_state(folder: Path) -> ClusterState | None:
    """The state that the supervisor wrote last; None without a supervisor."""
    if not is_locked(lock_path(folder)):
        return None
    try:
        return ClusterState.model_validate_json(state_path(folder).read_text())
    except (FileNotFoundError, ValidationError):
        return None


async def health(state: ClusterState) -> tuple[PartHealth, ...]:
    """The health of every part, asked at the same time."""
    return tuple(await asyncio.gather(*(_health(part) for part in state.parts)))


async def _health(part: PartState) -> PartHealth:
    alive = part.process is not None and part.process.is_alive()
    ready = alive and (part.ready_url is None or await answers_ok(part.ready_url))
    return PartHealth(part=part, alive=alive, ready=ready)


def _follow(supervisor: subprocess.Popen[bytes], tell: Tell) -> None:
    """Take the supervisor's messages until it is detached."""
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    for line in supervisor.stdout:
        message = json.loads(line)
        if "step" in message:
            tell(message["step"])
        elif "failed" in message:
            raise LabFailure(message["failed"])
        elif "ready" in message:
            os.write(supervisor.stdin.fileno(), b"detach\n")
        elif "detached" in message:
            return
    raise LabFailure("The local control plane was ended while it came up.")


def _remove(folder: Path) -> bool:
    """Kill everything that carries the folder's mark, the supervisor too, and remove the folder."""
    there = folder.exists()
    killed = kill_marked(str(folder))
    shutil.rmtree(folder, ignore_errors=True)
    return there or killed > 0
