"""An `libnvidia-ml.so.1` of our own, loaded by the real nvidia-ml-py and driven by a state file.

`library` builds it, `NvmlState` says what it answers: devices, utilisation, processes, MIG, links and failures."""

from coda_lab.emulators.nvml.devices import Device, Process, Slice
from coda_lab.emulators.nvml.state import NvmlState

__all__ = ["Device", "NvmlState", "Process", "Slice"]
