"""kopf without what nobody here asks of it, but that takes memory.

It imports all of the `kubernetes` package, 10 MiB, to recognise its model classes, which nobody here passes to kopf;
where kopf does not find it, it goes on without. And it remembers 1 KiB of each object, in small pieces that keep a
burst's memory from being given back: memos, indices, daemons and delays after errors, which `on.event` handlers lack.
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
        del sys.modules["kubernetes"]  # whoever needs it later finds it

__all__ = ["Forgetful", "kopf"]


class Forgetful(ResourceMemories):
    """Remembers no object for longer than one event; takes the place of kopf's memories."""

    async def recall(self, raw_body: kopf.RawBody, **options: Any) -> ResourceMemory:
        """What is to be known of an object while one event of it is handled."""
        return await super().recall(raw_body, **(options | {"ephemeral": True}))
