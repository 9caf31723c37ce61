"""kopf without two things that take memory and that nothing here uses.

kopf imports the whole `kubernetes` package (10 MiB) to recognise its model classes, but works without it. kopf also
remembers 1 KiB of each object: memos, indices, daemons, delays after errors. `on.event` handlers have none of these.
The small pieces keep the memory of a burst from being given back.
"""

import sys
from typing import Any

_ABSENT = "kubernetes" not in sys.modules
if _ABSENT:
    sys.modules["kubernetes"] = None  # type: ignore[assignment]  # so that importing it raises ImportError
try:
    import kopf
    from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory
finally:
    if _ABSENT:
        del sys.modules["kubernetes"]  # a later import finds it

__all__ = ["EphemeralMemories", "kopf"]


class EphemeralMemories(ResourceMemories):
    """kopf's memories, where no object is remembered for longer than one event."""

    async def recall(self, raw_body: kopf.RawBody, **options: Any) -> ResourceMemory:
        """Return what is known of an object while one event of it is handled."""
        return await super().recall(raw_body, **(options | {"ephemeral": True}))
