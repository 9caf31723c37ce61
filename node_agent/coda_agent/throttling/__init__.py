"""Throttles on this node: made, kept and undone. When to throttle is decided in `coda.contention`."""
