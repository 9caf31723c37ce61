"""Memory bandwidth by the kernel's resctrl file system: what the hardware can, who uses how much, who gets less.

`probing` says what the node offers, `counters` measures, `groups` limits and moves pods, `tasks` keeps a group's
threads complete, `schemata` knows the text of limits. The layout: one throttle group `coda-throttle`, and for every pod
a monitoring group `coda-<uid>`, below the root while it is free and below the throttle group while it is not. So one
class of service is enough, and one rename throttles a pod. Names without `coda-` belong to others and are never
written. A *domain* is what has one last-level cache and one limit: a socket on Intel, a core complex on AMD; the core
calls it a socket. What must not live here: when and whom to throttle (the core), and the journal (`coda_agent`)."""
