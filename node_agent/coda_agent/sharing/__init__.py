"""Shared GPUs of this node: a socket for the processes on them, and the loop that turns reports into orders.

Off unless `CODA_SHARING` is on. Nothing is decided here: `coda.sharing` does that. Nothing that a process says is
believed beyond its own pod. Read `messages` (what is said), `members` (what is known of a pod), `units` (who is on
which GPU), `coordinator` (a round) and `server` (the socket)."""

from coda_agent.sharing.coordinator import Coordinator, GpuOrder
from coda_agent.sharing.server import SharingServer
from coda_agent.sharing.shared_gpus import SharedGpus
from coda_agent.sharing.units import Role, SharedGpu, shared_gpus_from

__all__ = ["Coordinator", "GpuOrder", "Role", "SharedGpu", "SharedGpus", "SharingServer", "shared_gpus_from"]
