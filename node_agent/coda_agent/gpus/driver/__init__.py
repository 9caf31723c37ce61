"""NVML, in the process that may hang: `python -m coda_agent.gpus.driver` answers one question after the other.

Nothing here is imported by the agent's own process. It decides nothing about what a value means. Read `nvml` (the
calls), `session`, `discovery`, `slice_use`, `measure` (one device), `links`, `gpus` (all of them), then `__main__`."""
