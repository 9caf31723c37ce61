"""Keeps a GPU busy a known share of the time, through the CUDA driver alone: no toolkit, no framework.

Usage: python benchmarks/duty_cycle.py PCI_BUS_ID SHARE SECONDS; prints `running` when the first period begins."""

from __future__ import annotations

import ctypes
import sys
import time

PERIOD_S = 0.05  # well below the driver's sample period of 1/6 s to 1 s

PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .pred  %again;
    .reg .u64   %start, %now, %limit;
    ld.param.u64    %limit, [nanoseconds];
    mov.u64         %start, %globaltimer;
LOOP:
    mov.u64         %now, %globaltimer;
    sub.u64         %now, %now, %start;
    setp.lt.u64     %again, %now, %limit;
    @%again bra     LOOP;
    ret;
}
\0"""


class CudaFailure(Exception):
    """The driver refused a call; the sentence names it and its code."""


class Spinner:
    """One GPU, on which a single thread can be kept running. Raises CudaFailure; OSError without a driver."""

    def __init__(self, pci_bus_id: str) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._kernel = ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGetByPCIBusId", ctypes.byref(device), pci_bus_id.encode())
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuModuleLoadData", ctypes.byref(module), PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"spin")

    def spin(self, busy_s: float) -> None:
        """Run a kernel that long and wait for its end."""
        limit = ctypes.c_uint64(int(busy_s * 1e9))
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(limit), ctypes.c_void_p))
        one, none = ctypes.c_uint(1), ctypes.c_void_p()
        shape = (one, one, one, one, one, one, ctypes.c_uint(0))
        self._call("cuLaunchKernel", self._kernel, *shape, none, parameters, none)
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise CudaFailure(f"{name} failed with CUDA error {code}")


def keep_busy(spinner: Spinner, share: float, seconds: float) -> None:
    """Busy for the first `share` of each period, on a grid that does not drift."""
    started_s = time.monotonic()
    for period in range(int(seconds / PERIOD_S)):
        spinner.spin(share * PERIOD_S)
        time.sleep(max(0.0, started_s + (period + 1) * PERIOD_S - time.monotonic()))


def main() -> int:
    """See the module."""
    pci_bus_id, share, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    try:
        spinner = Spinner(pci_bus_id)
        spinner.spin(0.001)  # the first launch loads the kernel
        print("running", flush=True)
        keep_busy(spinner, share, seconds)
    except (CudaFailure, OSError) as error:
        print(f"duty_cycle: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
