"""Which Coda, Kubernetes and Python a report is about."""

from __future__ import annotations

import asyncio
import platform
from importlib import metadata
from pathlib import Path

from coda_kube.client import Client


async def versions(client: Client) -> dict[str, str]:
    """Names to versions; `commit` is `unknown` outside a checkout."""
    kubernetes = await client.get("/version")
    return {
        "coda": _installed(),
        "commit": await _commit(),
        "kubernetes": str(kubernetes["gitVersion"]),
        "python": platform.python_version(),
    }


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
