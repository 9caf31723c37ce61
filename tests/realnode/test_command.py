"""`coda local up --real-node`: the machine is a part of the local cluster, and goes with it however it goes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coda_lab.host.errors import LabFailure
from coda_lab.host.paths import Settings
from coda_lab.host.processes import marked, python_path
from coda_lab.local.named_clusters import read_state
from coda_lab.realnode.artifacts import QEMU, ensure_node, missing_programs, program


def test_a_program_that_is_missing_is_named_with_its_package(tmp_path: Path) -> None:
    nowhere = Settings(cache=tmp_path, ready_made=None, environ={"PATH": str(tmp_path)})
    assert QEMU in missing_programs(nowhere)
    with pytest.raises(LabFailure, match=r"needs qemu-system-x86_64.*`make node` installs Debian's package"):
        program(QEMU, nowhere)


@pytest.mark.e2e
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("needs_vm")
def test_the_machine_comes_with_up_and_is_gone_when_the_supervisor_was_killed(tmp_path: Path) -> None:
    settings = Settings.from_environ()
    ensure_node(settings, print)
    for built in ("kube", "guest", "containerd", "kubelet", "node-kernel", "node-images"):
        (tmp_path / built).symlink_to(settings.cache / built)
    environ = {**settings.environ, "CODA_CACHE_DIR": str(tmp_path), "PYTHONPATH": python_path()}
    folder = tmp_path / "local" / "default"
    try:
        _coda_local(environ, "up", "--nodes", "1x1x1", "--racks", "1", "--no-coda", "--real-node")
        state = read_state(folder)
        assert state is not None
        machine = _machine_of(folder)
        os.kill(state.supervisor.pid, signal.SIGKILL)
        assert select.select([machine], [], [], 60)[0], "the machine outlives the cluster"
    finally:
        _coda_local(environ, "down")
    assert not folder.exists()


def _coda_local(environ: dict[str, str], *words: str) -> None:
    subprocess.run([sys.executable, "-m", "coda_cli", "local", *words], env=environ, check=True, timeout=1200)


def _machine_of(folder: Path) -> int:
    """A descriptor of the cluster's qemu process."""
    (pid,) = (pid for pid in marked(str(folder)) if QEMU.encode() in Path(f"/proc/{pid}/cmdline").read_bytes())
    return os.pidfd_open(pid)
