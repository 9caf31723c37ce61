"""Seats: resources of this node by which Coda lets a pod onto a GPU that another pod has.

The kubelet counts them (its device plugin API) and gives the pod's container what `framework/` needs. Who may sit
where is the planner's business, and who may ask for a seat the API server's. Off unless `CODA_SHARING` is on.

Read `numbers` (which GPU is which resource), `framework` (the files on the node), `device_plugin` (what is said to the
kubelet), `grpc_server` and `plugin_socket` (how), `seats` (a round)."""

from coda_agent.seats.seats import Seats

__all__ = ["Seats"]
