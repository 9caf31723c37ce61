"""What a local cluster is asked to be, and where its files lie. Values only: nothing here starts anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coda.errors import InvalidInput
from coda_lab.kubelets.nodes import PODS_PER_NODE, node_specs
from coda_lab.machines.paths import MOST_AGENTS

Tell = Callable[[str], None]
"""Receives a short sentence for the person who waits."""

OPERATOR = "operator"
EXTENDER = "extender"
FORWARDER = "forwarder"
KUBELETS = "kubelets"
MACHINES = "machines"
"""The process that emulates the machines of the nodes that have an agent."""
AGENT = "agent"
REAL_NODE = "real-node"
"""The process that owns the virtual machine of the real node."""
SCHEDULER = "kube-scheduler"
FOREIGN_SCHEDULER = "foreign-scheduler"
"""The second kube-scheduler process, where the spec asks for one."""

REAL_NODE_CORES = 8
"""Default cores of the real node: as many as GPUs. They are emulated, so they may exceed the machine's."""

SLOW_HEARTBEATS_ABOVE = 100
"""Above this many nodes the kubelets renew their Leases every 120 s, so that the machine has time for other work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What to start.

    - `nodes`: simulated nodes (8x8x48,4x4x28: count x GPUs x cores), spread over `racks`, each for `pods_per_node`
      pods; empty for none. Each GPU has `seats` for opportunistic jobs.
    - `coda`: False for a plain control plane, whose scheduler has no extender.
    - `foreign_scheduler`: True runs the default profile in a kube-scheduler process of its own, without an extender,
      as on a cluster that had its scheduler before Coda; False: one process with both profiles.
    - `stopped`: parts that are prepared but left for the caller to start.
    - `environ_by_part`: more environment for single parts.
    - `api_port`: 0 takes a free one.
    - `real_node_cores`: adds a real node of this many cores, in a virtual machine; 0 for none.
    - `agents`: this many of the first simulated nodes have an emulated machine and the real agent on it. Its tuning
      measures for `agent_window_s`.
    - `server_by_part`: parts that reach the API server at another address, for example through a proxy.
    """

    nodes: str = "8x8x48"
    racks: int = 2
    pods_per_node: int = PODS_PER_NODE
    seats: int = 0
    coda: bool = True
    foreign_scheduler: bool = False
    operators: int = 1
    extenders: int = 2
    stopped: frozenset[str] = frozenset()
    environ_by_part: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    api_port: int = 0
    real_node_cores: int = 0
    agents: int = 0
    agent_window_s: float = 10.0
    server_by_part: Mapping[str, str] = field(default_factory=dict)

    @property
    def node_count(self) -> int:
        """The number of nodes in `nodes`. Raises InvalidInput when `nodes` or `racks` makes no sense."""
        return len(node_specs(self.nodes, racks=self.racks)) if self.nodes else 0

    def check(self) -> None:
        """Raise InvalidInput for a spec that cannot be started."""
        if not 0 <= self.agents <= min(self.node_count, MOST_AGENTS):
            most = f"there are {self.node_count} simulated nodes, and {MOST_AGENTS} agents at most"
            raise InvalidInput(f"--agents {self.agents}: {most}")
        if not 1 <= self.agent_window_s < math.inf:
            raise InvalidInput(f"--window {self.agent_window_s:g}: give seconds from 1 on")

    @property
    def names(self) -> tuple[str, ...]:
        """Every part, in the order they are started."""
        parts = ["etcd", "kube-apiserver", "kube-controller-manager", SCHEDULER]
        if self.foreign_scheduler:
            parts.append(FOREIGN_SCHEDULER)
        if self.nodes:
            parts.append(KUBELETS)
        if self.real_node_cores:
            parts.append(REAL_NODE)
        if self.coda:
            parts.append(FORWARDER)
            parts += [f"{EXTENDER}-{number}" for number in range(self.extenders)]
            parts += [f"{OPERATOR}-{number}" for number in range(self.operators)]
        if self.agents:
            parts += [MACHINES, *(f"{AGENT}-{number}" for number in range(self.agents))]
        return tuple(parts)

    @property
    def port_names(self) -> tuple[str, ...]:
        """What needs a port of its own: every part, and what some parts have besides."""
        extenders = [name for name in self.names if name.startswith(EXTENDER)]
        return tuple(dict.fromkeys((*self.names, *map(metrics_port_of, extenders), "etcd-peer", FORWARDER)))


def metrics_port_of(part: str) -> str:
    """The name of the port of probes and metrics, for a part that has another port for its work."""
    return f"{part}-metrics"


def identity_of(part: str) -> str:
    """The identity of a part towards the API server. Replicas and schedulers share one; others have their own."""
    if part == FOREIGN_SCHEDULER:
        return SCHEDULER
    kind, _, number = part.partition("-")
    return kind if kind in (OPERATOR, EXTENDER, AGENT) and number.isdigit() else part


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The files of one cluster, all under `folder`."""

    folder: Path

    def kubeconfig(self, identity: str) -> Path:
        """The kubeconfig of `identity`."""
        return self.credentials / f"{identity}.yaml"

    def kubeconfig_of(self, part: str, spec: ClusterSpec) -> Path:
        """The kubeconfig of a part: its identity's, or a file of its own if the spec gives it another address.

        An agent has one of its own: its token says on which node it runs."""
        has_own = part in spec.server_by_part or (part != AGENT and identity_of(part) == AGENT)
        return self.kubeconfig(part if has_own else identity_of(part))

    def log(self, part: str) -> Path:
        """The log of a part."""
        return self.folder / "logs" / f"{part}.log"

    @property
    def real_node(self) -> Path:
        """The files of the real node's virtual machine: its console, its log, and the folder it shares with us."""
        return self.folder / REAL_NODE

    @property
    def etcd(self) -> Path:
        """The data of etcd."""
        return self.folder / "etcd"

    @property
    def credentials(self) -> Path:
        """Kubeconfigs and the token file."""
        return self.folder / "credentials"

    @property
    def machines(self) -> Path:
        """The emulated machines, and the files their agents keep."""
        return self.folder / MACHINES

    @property
    def certificate(self) -> Path:
        """The API server's serving certificate, and the authority that signed it."""
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def history(self) -> Path:
        """The database of finished jobs. Two operators may share it: they run on one machine."""
        return self.folder / "history.sqlite"

    @property
    def kubectl(self) -> Path:
        """A kubectl that talks to this cluster as its administrator unless KUBECONFIG says otherwise."""
        return self.folder / "kubectl"

    @property
    def scheduler_config(self) -> Path:
        """kube-scheduler's configuration."""
        return self.folder / "scheduler.json"

    @property
    def foreign_scheduler_config(self) -> Path:
        """The second kube-scheduler's configuration."""
        return self.folder / "foreign-scheduler.json"

    def tls(self, side: str) -> Path:
        """Certificate, key and authority of the extender or of kube-scheduler, for the calls between them."""
        return self.folder / "tls" / side

    @property
    def account_key(self) -> Path:
        """The key that signs service account tokens."""
        return self.folder / "certificates" / "accounts.key"
