"""An `libnvidia-ml.so.1` of our own, loaded by the real nvidia-ml-py and driven by a state file.

Read `devices` (the values), `state` (`NvmlState` says what it answers: devices, utilisation, processes, MIG, links and
failures), then `library` (builds it).
"""

from coda_lab.emulators.nvml.devices import Device, Process, Slice
from coda_lab.emulators.nvml.state import NvmlState

__all__ = ["Device", "NvmlState", "Process", "Slice"]
