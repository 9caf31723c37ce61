"""Which version of Coda this process runs."""

from __future__ import annotations

from importlib import metadata


def installed_version() -> str:
    """Return the version of the installed package, or `unknown` in a checkout without one."""
    try:
        return metadata.version("coda")
    except metadata.PackageNotFoundError:
        return "unknown"
