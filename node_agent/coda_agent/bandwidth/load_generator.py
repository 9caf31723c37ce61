"""One process that moves memory as fast as one core can: copies between buffers far larger than any cache.

`python -m coda_agent.bandwidth.load_generator CPU BYTES SECONDS`: pinned to CPU, with BYTES in two halves, for SECONDS
or until its parent dies. Large copies of the C library do not go through the cache. It ends by printing the bytes
copied."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
LEAST_BYTES = 1 << 20


def copy_for(half_bytes: int, seconds: float) -> int:
    """Copy `half_bytes` to and fro for some seconds; return the bytes copied. Cost: twice that memory."""
    halves = [mmap.mmap(-1, half_bytes) for _ in range(2)]
    for half in halves:
        with contextlib.suppress(OSError, AttributeError):
            half.madvise(mmap.MADV_HUGEPAGE)
    one, other = [ctypes.addressof(ctypes.c_char.from_buffer(half)) for half in halves]
    ctypes.memset(one, 1, half_bytes)
    ctypes.memset(other, 2, half_bytes)
    copied, end_s = 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        ctypes.memmove(other, one, half_bytes)
        one, other = other, one
        copied += half_bytes
    return copied


def main(cpu: int, size_bytes: int, seconds: float) -> None:
    """Pin the process, copy, and print the bytes copied."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setaffinity(0, {cpu})
    copied = copy_for(max(LEAST_BYTES, size_bytes // 2), seconds)
    sys.stdout.write(f"{copied}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
