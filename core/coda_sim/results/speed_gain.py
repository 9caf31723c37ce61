"""How much faster GPU jobs ran than their source recorded: what a comparison owes to its speed curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from coda_sim.engine.log import JobEntry


class SpeedGain(NamedTuple):
    """Recorded run time over the time on the GPUs, less 1: 0.5 is half as fast again, below 0 is slower."""

    mean: float  # over the GPU time of all jobs
    most: float  # of one job


def speed_gain_of(entries: Sequence[JobEntry]) -> SpeedGain | None:
    """Return the gain of the GPU jobs that ended, over their pieces that counted; None if there is none. O(pieces)."""
    held, done, most = [], [], -1.0
    for entry in entries:
        if entry.end_s is None or not entry.gang.gpus:
            continue
        kept = [piece for piece in entry.pieces if piece.kept]
        ran_s = math.fsum(piece.end_s - piece.start_s for piece in kept)
        work_s = math.fsum(piece.work_s for piece in kept)
        if ran_s > 0:
            held.append(ran_s * entry.gang.gpus)
            done.append(work_s * entry.gang.gpus)
            most = max(most, work_s / ran_s - 1)
    return SpeedGain(mean=math.fsum(done) / math.fsum(held) - 1, most=most) if held else None
