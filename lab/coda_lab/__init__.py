"""The lab: everything that lets Coda run, and be tried, without a cluster. No decision of Coda's is made here.

The lab may start the shells; no shell may import the lab. Read `spec` (what a cluster is asked to be) and `local` (the
local control plane; `local.startup.running_cluster` is the way in for programs and tests). Then `kubelets` (simulated
nodes), `checker` (the invariants), `emulators` and `machines` (hardware for the node agent), `realnode` (a real
kubelet in a virtual machine), `programs` (what is built once) and `experiments` (chaos, race, fuzz).
"""
