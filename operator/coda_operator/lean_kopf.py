"""kopf without the `kubernetes` package. kopf imports all of that, 10 MiB, to recognise its model classes, which nobody
here passes to kopf; where kopf does not find it, it goes on without."""

import sys

_ABSENT = "kubernetes" not in sys.modules
if _ABSENT:
    sys.modules["kubernetes"] = None  # type: ignore[assignment]  # so that importing it raises ImportError
try:
    import kopf
finally:
    if _ABSENT:
        del sys.modules["kubernetes"]  # whoever needs it later finds it

__all__ = ["kopf"]
