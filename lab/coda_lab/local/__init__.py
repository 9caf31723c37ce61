"""The local control plane: etcd, API server, scheduler, controllers and Coda as processes. No decision is made here.

Read `parts` (what runs, with which flags), `cluster` (the processes and their handles), `startup` (`running_cluster`: a
cluster for the time of a block), then `supervisor` and `named_clusters` (clusters of `coda local`, which outlive the
command). `restarts` starts ended parts again; `forwarder` stands in for a Service; `credentials` and
`machine_commands` are used by the others.
"""
