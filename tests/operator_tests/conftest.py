"""Time in these tests is virtual: an hour passes at once, and no test waits for a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tests.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop}
