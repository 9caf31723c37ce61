"""Make-believe CUDA: the real torch wheel believes that it has GPUs; kernels compute nothing and take time.

Memory is accounted over all processes, copies are real, and each GPU has one timeline. So it shows whether limits,
pauses and orders work, never how fast a GPU is.

Read `library_source/runtime.c`, then `torch_rig` (one wheel made ready) and `stubs` (libraries that do nothing)."""

from coda_lab.emulators.cuda.gpu import GpuFile, build_runtime
from coda_lab.emulators.cuda.torch_rig import TORCH_VERSIONS, TorchRig, fetch_torch, find_torch

__all__ = ["TORCH_VERSIONS", "GpuFile", "TorchRig", "build_runtime", "fetch_torch", "find_torch"]
