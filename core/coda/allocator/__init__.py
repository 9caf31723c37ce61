"""The adaptive CPU allocator: how many cores a training job gets.

Nothing is measured, granted or resized here, and nothing reads a clock. Read `start_point` (before anything is
measured), `curve` (what was measured), `window_samples` (what one window of a rank says), `ranks` (what all ranks say
together) and `core_search` (which count is next). Then `watch` (whether the answer still stands), `resize` (how a grant
is carried out on running pods), `advice` (where none can be) and `tuning` (all of it, for one running job).
"""

from __future__ import annotations

from coda.allocator.config import CoreSearchConfig, TuningConfig
from coda.allocator.core_search import CoreSearch, SearchOutcome, SearchResult
from coda.allocator.resize import RankSize
from coda.allocator.start_point import Category, Hints, start_cores
from coda.allocator.tuning import Tuning, TuningPhase, next_tuning

__all__ = [
    "Category",
    "CoreSearch",
    "CoreSearchConfig",
    "Hints",
    "RankSize",
    "SearchOutcome",
    "SearchResult",
    "Tuning",
    "TuningConfig",
    "TuningPhase",
    "next_tuning",
    "start_cores",
]
