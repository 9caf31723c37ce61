"""A device of a dynamic resource claim. Here, so that the process that asks the driver loads no client of the API."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDevice:
    """A device of a dynamic resource claim; a ResourceSlice tells its UUID."""

    driver: str
    pool: str
    device: str
