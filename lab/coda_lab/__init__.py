"""The lab: everything that lets Coda run and be tried without a cluster of one's own.

Here live the local control plane (real etcd, API server, scheduler and controllers, built once into a user cache), the
supervisor that keeps its processes together and leaves nothing behind, the forwarder that stands in for a Service, the
simulated kubelets and the invariant checker. What must not live here: any decision of Coda's. The lab may start the
shells; no shell may import the lab.

`LocalCluster.running` in `cluster` is the way in for programs and tests, `persistent` the one for `coda local`.
"""
