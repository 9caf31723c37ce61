"""One real node without Docker or KVM: a Debian kernel under qemu's emulation with containerd, runc and the kubelet.

`pieces` makes what it needs once per machine, `vm` is the virtual machine, `guest` talks to it, `node` makes a
Kubernetes node of it, and `hosting` is the process that the local cluster runs."""
