"""Enters every Python process of a container that shares a GPU, and does nothing until somebody imports torch.

Then it runs the `sitecustomize` that it hides: the image's or the user's. Others of its kind do so, too, and run this
one again: it then runs the next that has not run yet. It must be readable for every Python 3."""

import os
import sys


def _enter():  # type: ignore[no-untyped-def]
    if sys.version_info < (3, 8) or not os.environ.get("CODA_SOCKET"):
        return
    try:
        from coda_torch.injection import wait_for_torch

        wait_for_torch()
    except Exception as error:
        sys.stderr.write("coda: this process is not controlled: %r\n" % (error,))  # noqa: UP031


def _run_the_next(ran):  # type: ignore[no-untyped-def]
    import importlib.machinery
    import importlib.util

    others = [path for path in sys.path if os.path.abspath(path or ".") not in ran]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        ran.append(os.path.dirname(os.path.abspath(spec.origin or "")))  # noqa: PTH100, PTH120
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if not hasattr(sys, "_coda_ran"):
    sys._coda_ran = [os.path.dirname(os.path.abspath(__file__))]  # type: ignore[attr-defined]  # noqa: PTH100, PTH120
    _enter()
_run_the_next(sys._coda_ran)  # type: ignore[attr-defined]
