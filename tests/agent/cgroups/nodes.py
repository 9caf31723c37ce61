"""Small emulated nodes with pods, in one line."""

from dataclasses import dataclass

from coda_agent.cgroups.layout import Layout, find_layout
from coda_agent.host.files import Files
from coda_lab.emulators.cgroups.file_access import files_over
from coda_lab.emulators.cgroups.kernel import Kernel
from coda_lab.emulators.cgroups.kubelet import Kubelet, Runtime, Setup
from coda_lab.emulators.cgroups.proc import ProcTree
from coda_lab.emulators.cgroups.tree import CgroupTree
from coda_lab.emulators.resctrl.tasks import FakeTasks

UID = "0a1b2c3d-1111-4222-8333-444455556666"
OTHER = "0a1b2c3d-9999-4222-8333-444455556666"

SETUPS = {
    "systemd": Setup(),
    "cgroupfs": Setup(has_systemd=False),
    "crio": Setup(runtime=Runtime.CRIO),
    "crio-cgroupfs": Setup(runtime=Runtime.CRIO, has_systemd=False),
    "docker": Setup(runtime=Runtime.DOCKER),
    "crun": Setup(has_subgroup=True),
    "nested": Setup(prefix="kubelet.slice/"),
    "deep-cgroupfs": Setup(prefix="docker/node-1/kubelet/", has_systemd=False),
}


@dataclass
class Node:
    tree: CgroupTree
    kubelet: Kubelet
    proc: ProcTree
    files: Files

    @property
    def layout(self) -> Layout:
        found = find_layout(self.files)
        assert found is not None
        return found

    def limit(self, path: str) -> float:
        return self.tree.kernel.find(path).cores


def node(version: int = 2, setup: Setup | None = None) -> Node:
    tasks = FakeTasks()
    tree = CgroupTree(Kernel(version), tasks)
    kubelet = Kubelet(tree, setup or Setup())
    proc = ProcTree(tree)
    return Node(tree=tree, kubelet=kubelet, proc=proc, files=files_over(cgroup=tree, proc=proc))
