"""One real node without Docker or KVM: a Debian kernel under qemu's emulation with containerd, runc and the kubelet.

No decision of Coda's is made here. Read `artifacts` (what is built or fetched once: `kernel`, `initramfs`, `images`),
`vm` (the virtual machine), `guest` (talks to it), `node` with `configuration` (makes it a Kubernetes node), then
`host_process` (the part that a local cluster runs).
"""
