"""Where pods and containers are in the cgroup trees of this node: version, driver, prefix, directories.

The kubelet's root is searched for, because `--cgroup-root` and nested nodes put it anywhere."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from coda_agent.cgroups.identity import container_id_from, pod_uid_from
from coda_agent.host import Files

ROOT = re.compile(r"^(?:kubepods|(?:[^/]+-)?kubepods\.slice)$")
DEEPEST_ROOT = 4  # directories above the kubelet's root; more than any known nesting
ENDED = frozenset((errno.ENOENT, errno.ENODEV, errno.ENOTDIR))  # a cgroup that is gone, or ends while it is read
MOST_SEARCHED = 20_000  # directories; a node with more cgroups than this is not searched to the end


class Version(Enum):
    """Which cgroup interface the kernel offers."""

    V1 = 1
    V2 = 2


class Driver(Enum):
    """Who makes the kubelet's cgroups."""

    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


class Quality(Enum):
    """A pod's quality of service, by the place of its cgroup."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """This node's trees. `cpu` and `cpuacct`: their directories in the cgroup root, "." on v2 for both."""

    version: Version
    driver: Driver
    root: str  # of the kubelet's pods, in each tree
    cpu: str = "."
    cpuacct: str = "."

    def cpu_file(self, path: str, name: str) -> str:
        """Return the path, from the cgroup root, of a file of the cpu controller in cgroup `path`."""
        return f"{self.cpu}/{path}/{name}"

    def cpuacct_file(self, path: str, name: str) -> str:
        """As `cpu_file`, of the controller that counts CPU time."""
        return f"{self.cpuacct}/{path}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCgroup:
    """One pod's directory, in each tree."""

    uid: str
    path: str
    quality: Quality


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerCgroup:
    """One container's directory; a pod's sandbox counts too. Processes may be deeper (crun)."""

    id: str
    path: str


def find_layout(files: Files) -> Layout | None:
    """Return where this node keeps its pods; None if no kubelet has made cgroups. Ties: the shallowest root, then the
    one with the most running pods (a kubelet that changes its driver leaves the old one), then the name.

    Raises OSError if the cgroup root itself cannot be read. Cost: one listing per cgroup in the worst case."""
    version = Version.V2 if files.cgroup.exists("cgroup.controllers") else Version.V1
    cpu, cpuacct = (".", ".") if version is Version.V2 else (_tree(files, "cpu"), _tree(files, "cpuacct"))
    if cpu is None or cpuacct is None:
        return None
    found = [
        Layout(
            version=version,
            driver=Driver.SYSTEMD if root.endswith(".slice") else Driver.CGROUPFS,
            root=root,
            cpu=cpu,
            cpuacct=cpuacct,
        )
        for root in sorted(_roots(files, cpu))
    ]
    return found[0] if len(found) == 1 else max(found, key=lambda one: _pods_in(files, one), default=None)


def list_pods(files: Files, layout: Layout) -> Mapping[str, PodCgroup]:
    """Return all pods with a cgroup, by uid, without those that vanish meanwhile."""
    found: dict[str, PodCgroup] = {}
    for quality, parent in _parents(layout):
        for name in _directories(files, f"{layout.cpu}/{parent}"):
            uid = pod_uid_from(name)
            if uid is not None:
                found[uid] = PodCgroup(uid=uid, path=f"{parent}/{name}", quality=quality)
    return found


def find_pod(files: Files, layout: Layout, uid: str) -> PodCgroup | None:
    """Return one pod's cgroup; None if it is gone. Raises OSError if this cannot be known."""
    for quality, parent in _parents(layout):
        path = f"{parent}/{_pod_name(layout, parent, uid)}"
        if files.cgroup.exists(f"{layout.cpu}/{path}"):
            return PodCgroup(uid=uid, path=path, quality=quality)
    return None


def list_containers(files: Files, layout: Layout, path: str) -> tuple[ContainerCgroup, ...]:
    """Return the containers of the pod at `path`, in order of their directories; none if the pod is gone."""
    named = ((name, container_id_from(name)) for name in _directories(files, f"{layout.cpu}/{path}"))
    return tuple(ContainerCgroup(id=id_, path=f"{path}/{name}") for name, id_ in named if id_ is not None)


def _tree(files: Files, controller: str) -> str | None:
    """The directory of a v1 controller. Several controllers may share one; then their names are links to it."""
    names = (name for name in files.cgroup.listdir() if controller in name.split(","))
    return min(names, key=lambda name: (len(name), name), default=None)


def _pods_in(files: Files, layout: Layout) -> tuple[int, int]:
    """How many pods there have a container, and how many there are."""
    pods = list_pods(files, layout).values()
    return sum(bool(list_containers(files, layout, pod.path)) for pod in pods), len(pods)


def _roots(files: Files, cpu: str) -> list[str]:
    """The kubelet's roots at the least depth that has one."""
    level, searched = [""], 0
    for _ in range(DEEPEST_ROOT + 1):
        below = [f"{parent}{name}" for parent in level for name in _directories(files, f"{cpu}/{parent}")]
        roots = [path for path in below if ROOT.match(path.rpartition("/")[2])]
        if roots:
            return roots
        searched += len(below)
        if searched > MOST_SEARCHED:
            return []
        level = [f"{path}/" for path in below]
    return []


def _parents(layout: Layout) -> Iterator[tuple[Quality, str]]:
    yield Quality.GUARANTEED, layout.root
    for quality, name in ((Quality.BURSTABLE, "burstable"), (Quality.BEST_EFFORT, "besteffort")):
        yield quality, f"{layout.root}/{_child(layout, name)}"


def _child(layout: Layout, name: str) -> str:
    """A directory below the root: systemd repeats the parent's name in each child's name."""
    if layout.driver is Driver.CGROUPFS:
        return name
    return f"{layout.root.rpartition('/')[2].removesuffix('.slice')}-{name}.slice"


def _pod_name(layout: Layout, parent: str, uid: str) -> str:
    if layout.driver is Driver.CGROUPFS:
        return f"pod{uid}"
    return f"{parent.rpartition('/')[2].removesuffix('.slice')}-pod{uid.replace('-', '_')}.slice"


def _directories(files: Files, path: str) -> tuple[str, ...]:
    """The directories in `path`; none if it is gone, ends meanwhile, or is no directory."""
    try:
        return files.cgroup.directories(path)
    except OSError as error:
        if error.errno in ENDED:
            return ()
        raise
