#!/bin/busybox sh
# The first program of the virtual machine. The host's files become the root file system: read from the host, written
# to memory only. /coda is shared with the host both ways, /run/coda-vm is what the host prepared for this machine.
set -e
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /lower /upper /new
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done < /modules/order

# "loose": what the host changes below its root after the first look need not be seen; /coda is always seen.
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /lower
mount -t tmpfs -o mode=755 memory /upper
mkdir /upper/changes /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/changes,workdir=/upper/work root /new

# Not the host's processes, devices and state; and no overlay below containerd's own overlays.
for folder in run var/lib/containerd var/lib/kubelet var/log; do
    mkdir -p "/new/$folder"
    mount -t tmpfs -o mode=755 memory "/new/$folder"
done
mkdir -p /new/coda
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none share /new/coda
mkdir /new/run/coda-vm
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose machine /new/run/coda-vm
sysctl -q -w net.ipv4.ip_forward=1 kernel.panic=10 vm.overcommit_memory=1
mount --move /proc /new/proc
mount --move /sys /new/sys
mount --move /dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm /new/dev/mqueue
mount -t devpts -o mode=620,ptmxmode=666 devpts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t mqueue mqueue /new/dev/mqueue
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup

# The API server's Service address is this machine's own (there is no kube-proxy): the guest program leads it there.
# By hand: DHCP may never run here, the network card being renamed at the same time.
ip link set lo up
ip address add 10.96.0.1/32 dev lo
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
hostname -F /new/run/coda-vm/hostname

# busybox's init collects the orphans that containerd and its shims leave.
printf '::once:/run/coda-vm/start\n' > /new/etc/inittab
exec switch_root /new /bin/busybox init
