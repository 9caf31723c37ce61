"""Waits for `import torch`, without importing it, and joins in before and after it."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coda_torch.job import Job

job: Job | None = None
"""This process's; None before torch is there, or if it cannot be controlled."""


class _TorchFinder:
    """Stands first in `sys.meta_path` until torch is imported. Many libraries only ask whether it is there."""

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return torch's own spec, with a loader that also prepares the job; None for other names."""
        if name != "torch" or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self._asking.now = False
        run = getattr(spec.loader, "exec_module", None) if spec is not None else None
        if spec is None or spec.loader is None or run is None:
            return spec

        def exec_module(module: Any) -> None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _guarded(_before)
            run(module)
            _guarded(_after, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def wait_for_torch() -> None:
    """Join in when this process imports torch."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _TorchFinder())


def _before() -> None:
    global job
    from coda_torch.job import Job
    from coda_torch.library import Library

    if os.environ.get("CODA_SHARE") or os.environ.get("CODA_HOST_RESERVE"):
        _keep_to_cuda_malloc()
    job = Job(Library.find(os.environ.get("CODA_LIBRARY", "")), os.environ["CODA_SOCKET"])


def _keep_to_cuda_malloc() -> None:
    """For a guest, and for one that asks for host memory. Any other job is never limited, and keeps its settings."""
    from coda_torch.memory import without_bypasses

    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        kept, bypasses = without_bypasses(os.environ.get(name, ""))
        if bypasses:
            os.environ[name] = kept
            say(f"{name} counts without {bypasses} here: memory past cudaMalloc cannot lie in host memory")


def _after(torch: Any) -> None:
    if job is not None:
        job.join(torch)


def _guarded(do: Any, *arguments: Any) -> None:
    global job
    try:
        do(*arguments)
    except Exception as error:
        if job is not None:
            job.let_go()
        job = None
        say(f"this process is not controlled: {error!r}")


def say(sentence: str) -> None:
    """One line on stderr, whatever has become of it."""
    try:
        sys.stderr.write(f"coda: {sentence}\n")
    except Exception:
        return
