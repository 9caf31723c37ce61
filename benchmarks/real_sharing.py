"""On a machine with an NVIDIA GPU and torch: the experiments of sharing, each on real kernels and real memory.

Usage: python benchmarks/real_sharing.py FOLDER [EXPERIMENT ...] > sharing.json
FOLDER is what `make framework` wrote. Exit code 0: all ran, or there is no GPU (said in one line); 1: one failed.
It needs the packages `coda`, `coda_agent`, nvidia-ml-py and torch; half an hour at most for all of them."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml

from shared_gpu.gpu import Gpu
from shared_gpu.knee import cores_by_search
from shared_gpu.memory import price_of_host, same_losses, shrink_and_grow
from shared_gpu.node import Node, node
from shared_gpu.pace import launch_overhead, pacing_accuracy
from shared_gpu.pairs import arrivals, bursts, profiles, two_jobs

EXPERIMENTS: dict[str, Callable[[Node, Gpu], Iterator[dict[str, Any]]]] = {
    "same-losses": same_losses,
    "shrink-and-grow": shrink_and_grow,
    "price-of-host": price_of_host,
    "launch-overhead": launch_overhead,
    "pacing-accuracy": pacing_accuracy,
    "two-jobs": two_jobs,
    "bursts": bursts,
    "profiles": profiles,
    "arrivals": arrivals,
    "cores-by-search": cores_by_search,
}


def main() -> int:
    """See the module."""
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(EXPERIMENTS):
        print(f"Usage: real_sharing.py FOLDER [EXPERIMENT ...], of {', '.join(EXPERIMENTS)}", file=sys.stderr)
        return 2
    framework, names = Path(sys.argv[1]), sys.argv[2:] or list(EXPERIMENTS)
    try:
        gpu = Gpu()
    except pynvml.NVMLError as error:
        print(f"No measurement: this machine has no NVIDIA GPU ({error})", file=sys.stderr)
        return 0
    failed = 0
    print(json.dumps({"gpu": gpu.described}), flush=True)
    for name in names:
        began_s = time.monotonic()
        try:
            with node(framework) as here:
                for row in EXPERIMENTS[name](here, gpu):
                    print(json.dumps({"experiment": name, **row}), flush=True)
        except Exception:  # the other experiments can still run
            print(json.dumps({"experiment": name, "failed": traceback.format_exc()[-1500:]}), flush=True)
            failed = 1
        print(f"{name} took {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
