"""The folders of simulated machines and their agents, and how many agents there may be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOST_AGENTS: Final = 16
"""Agents on one developer's machine: each is a process of about 80 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePlaces:
    """`folder`: of all machines. Sockets are named relative to it, because their paths may have 107 bytes at most."""

    folder: Path
    node: str

    @property
    def machine(self) -> Path:
        """The files that are gone when the machine restarts."""
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
        """The machine's /sys."""
        return self.machine / "sys"

    @property
    def pods(self) -> Path:
        """The folder of its kubelet's pods."""
        return self.machine / "pods"

    @property
    def nvml_state(self) -> Path:
        """The answers of its NVML."""
        return self.machine / "nvml"

    @property
    def disk(self) -> Path:
        """The agent's state directory, which outlives the agent and the machine."""
        return self.folder / "disks" / self.node
