"""Where a simulated machine and its agent keep things, below one folder; and how many there may be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOST_AGENTS: Final = 16
"""Agents on one machine of a developer: each is a process of about 80 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePlaces:
    """`folder`: of all machines. Sockets are named relative to it, because their paths may have 107 bytes at most."""

    folder: Path
    node: str

    @property
    def machine(self) -> Path:
        """What is gone when the machine starts anew."""
        return self.folder / self.node

    @property
    def files_socket(self) -> Path:
        """Relative to `folder`: the machine's file trees."""
        return Path(self.node) / "files"

    @property
    def kubelet_socket(self) -> Path:
        """Relative to `folder`: its kubelet's pod-resources service."""
        return Path(self.node) / "kubelet"

    @property
    def sys(self) -> Path:
        """Its /sys."""
        return self.machine / "sys"

    @property
    def nvml_state(self) -> Path:
        """What its NVML answers."""
        return self.machine / "nvml"

    @property
    def disk(self) -> Path:
        """What the agent keeps over its own death and the machine's: its state directory."""
        return self.folder / "disks" / self.node
