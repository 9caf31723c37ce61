"""A mounted, emulated resctrl and the plain system calls on it."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coda_agent.host.files import Files
from coda_lab.emulators.load import Load
from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.traffic import advance

GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Emulated:
    machine: Machine
    root: Path

    @property
    def files(self) -> Files:
        return Files(proc=self.root / ".proc", resctrl=self.root)

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def write(self, path: str, text: str) -> None:
        """Exactly one write(2)."""
        descriptor = os.open(self.root / path, os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def mkdir(self, path: str) -> None:
        (self.root / path).mkdir()

    def rmdir(self, path: str) -> None:
        (self.root / path).rmdir()

    def rename(self, old: str, new: str) -> None:
        (self.root / old).rename(self.root / new)

    def names(self, path: str = ".") -> set[str]:
        return {entry.name for entry in (self.root / path).iterdir()}

    def tids(self, group: str) -> set[int]:
        return {int(line) for line in self.read(f"{group}/tasks".lstrip("/")).split()}

    def status(self) -> str:
        return self.read("info/last_cmd_status").removesuffix("\n")

    def total(self, group: str = "", domain: int = 0) -> int:
        return int(self.read(f"{group}/mon_data/mon_L3_{domain:02}/mbm_total_bytes".lstrip("/")))

    def spawn(self, load: str = "", threads: int = 1) -> tuple[int, ...]:
        return self.machine.tasks.spawn(load, threads)  # type: ignore[union-attr]  # invented threads

    def load(
        self, name: str, *, gb_per_s: float, cores: float = 32, domain: int = 0, threads: int = 1
    ) -> tuple[int, ...]:
        """A pod that wants bandwidth; its tids."""
        self.machine.loads[name] = Load(name=name, domain=domain, cores=cores, bytes_per_s=gb_per_s * GB)
        return self.spawn(name, threads)

    def tids_of(self, load: str) -> Callable[[], frozenset[int]]:
        """Lists the living threads of a load, as a cgroup would."""
        return lambda: frozenset(task.tid for task in self.machine.tasks.all() if task.load == load)

    def advance(self, seconds: float) -> None:
        advance(self.machine, seconds)


def refusal(operation: Callable[..., object], *arguments: object) -> str:
    """The name of the errno; "taken" where there was none."""
    try:
        operation(*arguments)
    except OSError as failure:
        return errno.errorcode[failure.errno or 0]
    return "taken"
