"""What asynchronous code waits for when a test takes too long: a timeout's own stack shows the event loop only."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator, Iterator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a test that pytest-timeout ended what each unfinished task awaits."""
    report = yield
    if call.excinfo is not None and "pytest-timeout" in str(call.excinfo.value):
        report.sections += [(f"{name} awaits", "\n".join(frames)) for name, frames in unfinished()]
    return report


def unfinished() -> Iterator[tuple[str, list[str]]]:
    """The name of each unfinished task of any event loop, and where it waits: outermost call first."""
    for task in [each for each in gc.get_objects() if isinstance(each, asyncio.Task)]:
        if not task.done():
            yield task.get_name(), list(_frames(task.get_coro()))


def _frames(awaited: Any) -> Iterator[str]:
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
