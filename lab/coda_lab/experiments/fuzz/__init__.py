"""Requests that no scheduler would send, against a running extender: seeded, counted, and judged."""
