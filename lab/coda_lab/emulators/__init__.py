"""Stand-ins for hardware that a development machine lacks, with the rules of the real thing.

Each emulator answers through the same interface as the original (a mounted file system, a C library, a socket), so the
agent's own code runs unchanged. The agent imports nothing from here, and no decision of Coda's is made here. Read
`load` (what load does to a machine), `cgroups`, `resctrl`, `nvml` and `pod_resources` (one interface each), `node` (one
machine of all of these), then `agent_rig` and `cluster_rig` (the agent on it, on fake time).
"""
