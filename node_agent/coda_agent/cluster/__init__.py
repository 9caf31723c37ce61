"""What the agent reads from the API server and writes there. It decides nothing about pods or jobs.

Read `pods` and `jobs` (objects as the agent needs them), `caches` (watches and writes), then `background_writes`."""
