"""The versions of Coda, Kubernetes and Python, and the machine, for a report."""

from __future__ import annotations

import asyncio
import os
import platform
from importlib import metadata
from pathlib import Path

from coda_kube.api.client import Client


async def versions(client: Client) -> dict[str, str]:
    """Names to versions; `commit` is `unknown` outside a checkout."""
    kubernetes = await client.get("/version")
    return {
        "coda": _installed(),
        "commit": await _commit(),
        "kubernetes": str(kubernetes["gitVersion"]),
        "python": platform.python_version(),
    }


def machine(load_before: float) -> dict[str, float]:
    """Cores, and the load averages of a minute before the run and now: times mean little beside other work."""
    return {"cores": float(os.cpu_count() or 0), "load_before": load_before, "load_at_end": os.getloadavg()[0]}


def _installed() -> str:
    try:
        return metadata.version("coda")
    except metadata.PackageNotFoundError:
        return "unknown"


async def _commit() -> str:
    try:
        git = await asyncio.create_subprocess_exec(
            "git",
            "describe",
            "--always",
            "--dirty",
            "--abbrev=12",
            cwd=Path(__file__).parent,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return "unknown"
    said, _ = await git.communicate()
    return said.decode().strip() or "unknown"
