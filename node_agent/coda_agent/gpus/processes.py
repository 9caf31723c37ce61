"""Whose the processes on the GPUs are: pid -> cgroup -> pod uid, remembered by process and not by pid.

NVML gives host pids, so this needs the host's /proc. A pid may be another process a moment later. So results are kept
by pid and start time, and the start time is read again after the cgroup."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from coda_agent.cgroups.identity import owner_from, start_ticks_from
from coda_agent.gpus.devices import GpuReading
from coda_agent.host import Files


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUser:
    """A process that uses a GPU. `pod_uid` None: it belongs to no pod, or /proc does not tell."""

    pid: int
    pod_uid: str | None


class ProcessOwners:
    """Remembers from round to round whose each process is."""

    def __init__(self, files: Files, pod_uid_of: Callable[[str], str | None] | None = None) -> None:
        self._files = files
        self._pod_uid_of = pod_uid_of or _pod_uid  # from the text of /proc/<pid>/cgroup
        self._uids: dict[tuple[int, int], str] = {}  # by pid and start in ticks

    def identify(self, pids: Iterable[int]) -> Mapping[int, GpuUser]:
        """Return the owner of each pid, by pid, without processes that are gone. Pids not asked for are forgotten.

        Cost: two short reads for a known process, three for a new one."""
        known: dict[tuple[int, int], str] = {}
        users: dict[int, GpuUser] = {}
        for pid in sorted(set(pids)):
            try:
                started, uid = self._identify(pid)
            except _GoneError:
                continue
            users[pid] = GpuUser(pid=pid, pod_uid=uid)
            if uid is not None and started is not None:
                known[pid, started] = uid
        self._uids = known
        return users

    def _identify(self, pid: int) -> tuple[int | None, str | None]:
        started = start_ticks_from(self._read(pid, "stat"))
        if started is None:
            return None, None
        if (pid, started) in self._uids:
            return started, self._uids[pid, started]
        uid = self._pod_uid_of(self._read(pid, "cgroup"))
        if start_ticks_from(self._read(pid, "stat")) != started:  # another process has the pid now
            raise _GoneError
        return started, uid

    def _read(self, pid: int, name: str) -> str:
        try:
            return self._files.proc.read_text(f"{pid}/{name}")
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESRCH):
                raise _GoneError from error
            return ""


def users_of(readings: Sequence[GpuReading], owners: ProcessOwners) -> Mapping[str, tuple[GpuUser, ...]]:
    """Return who uses each GPU, or each slice in MIG mode, by UUID and in order of pid. One round of `owners`.

    Devices whose processes were not measured are left out."""
    seen = [(reading.gpu, reading.processes) for reading in readings if reading.processes is not None]
    users = owners.identify(process.pid for _, processes in seen for process in processes)
    found: dict[str, tuple[GpuUser, ...]] = {}
    for gpu, processes in seen:
        if not gpu.mig:
            found[gpu.uuid] = _users_with(users, {process.pid for process in processes})
        for part in gpu.instances:
            pids = {process.pid for process in processes if process.gpu_instance == part.gpu_instance}
            found[part.uuid] = _users_with(users, pids)
    return found


def _users_with(users: Mapping[int, GpuUser], pids: set[int]) -> tuple[GpuUser, ...]:
    return tuple(users[pid] for pid in sorted(pids) if pid in users)


class _GoneError(Exception):
    """The process ended."""


def _pod_uid(text: str) -> str | None:
    owner = owner_from(text)
    return None if owner is None else owner.pod_uid
