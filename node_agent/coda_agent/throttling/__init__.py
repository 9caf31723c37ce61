"""Throttles on this node: made, kept in force, and undone. When to throttle is the core's decision (`coda.contention`).

Read `window` (sensed values to the core's), `actuator` (carries out actions) with its two means `bandwidth_limits` and
`core_limits` (which limits to set: `core_split`), then `undo` (one CPU limit) and `restore` (everything)."""
