"""The node daemon: senses GPUs, memory bandwidth and cores; tunes training jobs and throttles CPU pods.

Every decision is the core's; what lives here reads the node, and writes what was decided."""
