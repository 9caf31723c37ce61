"""Requests whose answer may take long, or never come: what was taken while a balancer was silent is not answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import NamedTuple

from coda_kube.api.bodies.errors import TooSlow
from coda_kube.objects.json_types import Json


class Answered(NamedTuple):
    """`took_s`: for one that needed patience; 0: a request with little patience was answered."""

    answer: Json
    took_s: float


async def first_answer(
    ask: Callable[[float], Coroutine[None, None, Json]], *, quick_s: float, patient_s: float
) -> Answered:
    """Return what `ask(limit_s)` answers first: once with much patience, and beside it again and again with little.

    So a server that is slow as a whole answers, and one that was silent is asked again soon after.
    Raises TooSlow after `patient_s`, and any other error at once."""
    now_s = asyncio.get_running_loop().time
    started_s = now_s()
    patient = asyncio.create_task(ask(patient_s))
    quick = asyncio.create_task(ask(quick_s))
    try:
        while True:
            await asyncio.wait({patient, quick}, return_when=asyncio.FIRST_COMPLETED)
            if patient.done() and not _was_too_slow(patient):
                return Answered(patient.result(), now_s() - started_s)
            if patient.done() or not _was_too_slow(quick):  # the last one may be answered in its time
                return Answered(await quick, 0.0)
            quick = asyncio.create_task(ask(quick_s))
    finally:
        patient.cancel()
        quick.cancel()
        await asyncio.gather(patient, quick, return_exceptions=True)


def _was_too_slow(done: asyncio.Task[Json]) -> bool:
    return not done.cancelled() and isinstance(done.exception(), TooSlow)
