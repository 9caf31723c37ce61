"""The allocator's search on a real GPU: a job that waits for its data loader, held to fewer and fewer cores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coda.allocator import CoreSearchConfig, SearchResult
from coda.allocator.core_search import CoreLimits, CoreSearch, begin_search, next_search
from coda.allocator.window_samples import Look, WindowResult, result_of_window
from shared_gpu.gpu import Gpu
from shared_gpu.node import Job, Node

NEEDED, MOST = 5.5, 14
LOOK_S, SETTLE_S = 0.5, 3.0
CONFIG = CoreSearchConfig(window_s=10.0)
"""The agent's windows last 90 s."""


def cores_by_search(node: Node, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """A job whose loader needs 5.5 cores starts with 3: the answer, and what each count gives afterwards."""
    job = node.start("resnet50", "--seconds", 400, "--loader", NEEDED)
    job.wait_until_running()
    limits = CoreLimits(least=1, most=MOST)
    search: CoreSearch | SearchResult = begin_search(3, 1, limits)
    tried: list[tuple[int, float | None]] = []
    while isinstance(search, CoreSearch) and len(tried) < 12:
        changed = not tried or tried[-1][0] != search.trying
        result = window(gpu, job, search.trying, changed=changed)
        tried.append((search.trying, None if result.reading is None else round(result.reading.share, 3)))
        search = next_search(search, result.reading, limits, CONFIG)
    truth = {}
    for cores in (4, 5, 6, 7, MOST):
        hold(job, cores)
        time.sleep(SETTLE_S)
        truth[cores] = round(gpu.busy(3.0), 3)
    answer = (search.cores, search.outcome.value) if isinstance(search, SearchResult) else (None, "not ended")
    yield {"answer": answer[0], "outcome": answer[1], "tried": tried, "busy_by_cores": truth}


def window(gpu: Gpu, job: Job, cores: int, *, changed: bool) -> WindowResult:
    """One window at so many cores."""
    if changed:
        hold(job, cores)
        time.sleep(SETTLE_S)
    count = int(CONFIG.window_s / LOOK_S)
    looks = [Look((at + 1) * LOOK_S, gpu.busy(LOOK_S)) for at in range(count)]
    return result_of_window(looks, CONFIG, changed=changed)


def hold(job: Job, cores: int) -> None:
    """Let the job and its workers run on the first cores only, as `taskset` does."""
    pids = [job.process.pid]
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), range(cores))
            pids += map(int, (task / "children").read_text().split())
