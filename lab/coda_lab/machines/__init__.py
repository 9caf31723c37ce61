"""The agent's simulated backend: emulated machines in real time, and the real agent that works on one through a socket.

The agent runs in a process of its own: it can be killed, and the machine, with the agent's changes, stays. No rule of a
file or of hardware is here: see `coda_lab.emulators`. Read `paths`, `pod_loads` (what a pod does), `pod_host` (the pods
of one machine), `file_server` and `remote_files` (both ends of the socket), then `agent`.
"""
