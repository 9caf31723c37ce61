"""What the kernel says of pods' CPU use and limits, and the only writes to it: limits, lowered and given back.

What must not live here: what to lower (the core's `contention`), and what was in place before (`journal`)."""
