"""The cluster that a command works on, existing or local for the time of the command, and its invariant checker."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from coda.errors import InvalidInput
from coda.policy import PolicyConfig, policy_of, why_not_live
from coda_extender.cluster.cluster import GATHER_S
from coda_kube.api.client import AlreadyExists, Client, Rejected, connect
from coda_kube.api.credentials import users_kubeconfig
from coda_kube.objects.names import GPU, OPT_IN
from coda_kube.objects.quantities import milli_from_quantity, whole_from_quantity
from coda_lab.checker import Checker
from coda_lab.checker import Report as Check
from coda_lab.install import wait_for_account
from coda_lab.local.restarts import kept_alive
from coda_lab.local.startup import running_cluster
from coda_lab.spec import EXTENDER, ClusterSpec, identity_of
from coda_sim.workload import ClusterShape
from coda_sim.workload.cluster_shape import NodeGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCluster:
    """A cluster to submit to. `where`: its name for people; `kubectl`: the start of a command line that reaches it."""

    client: Client
    shape: ClusterShape
    where: str
    kubectl: str
    ended_parts: Callable[[], tuple[str, ...]]  # processes of a local cluster that should run but do not


class Watched:
    """The checker's report. `check` is None until the watched block has ended, and stays None if nothing is watched."""

    def __init__(self) -> None:
        self.check: Check | None = None


@asynccontextmanager
async def refereed(client: Client | None) -> AsyncIterator[Watched]:
    """Check the invariants of the client's cluster inside the block; with None nothing is checked."""
    watched = Watched()
    if client is None:
        yield watched
        return
    checker = Checker(client)
    async with checker.watching():
        yield watched
    watched.check = checker.report()


@asynccontextmanager
async def local_target(
    nodes: str, racks: int, notes: Console, *, planner: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[TargetCluster, Client]]:
    """Yield a fresh local cluster as a plain user sees it, and an administrator's client for the checker.

    `planner`: environment of its planner, where it differs from the defaults."""

    def tell(sentence: str) -> None:
        notes.print(sentence, highlight=False, markup=False, soft_wrap=True)

    plain = ClusterSpec(nodes=nodes, racks=racks)
    extenders = (part for part in plain.names if identity_of(part) == EXTENDER)
    spec = replace(plain, environ_by_part=dict.fromkeys(extenders, planner or {}))
    async with (
        running_cluster(spec, tell=tell) as cluster,
        kept_alive(cluster),
        cluster.client("user") as client,
        cluster.client("admin") as admin,
    ):

        def ended_parts() -> tuple[str, ...]:
            return tuple(part for part in spec.names if not cluster.is_running(part))

        yield (
            TargetCluster(
                client=client,
                shape=await shape_from_cluster(client),
                where="a local control plane",
                kubectl=f"KUBECONFIG={cluster.kubeconfig('user')} {' '.join(cluster.kubectl)}",
                ended_parts=ended_parts,
            ),
            admin,
        )


async def opt_in(admin: Client, namespaces: Iterable[str]) -> None:
    """Make these namespaces where they are missing, and let their pods be CPU jobs."""
    labels = {OPT_IN: "true"}
    for name in sorted(namespaces):
        metadata = {"name": name, "labels": labels}
        try:
            await admin.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        except AlreadyExists:
            await admin.patch(f"/api/v1/namespaces/{name}", {"metadata": {"labels": labels}})
    for name in sorted(namespaces):
        await wait_for_account(admin, name)


def planner_of_replay(policy: str, speed: float) -> dict[str, str]:
    """Return the planner's environment in a local replay: its times are divided by `speed`, as all others are.
    Reclaims have no limits, as in the simulator.

    Raises InvalidInput for a policy that a live planner cannot follow."""
    why_not = why_not_live(policy_of(policy))
    if why_not is not None:
        raise InvalidInput(f"--policy {policy} {why_not}")
    patience_s = PolicyConfig().promise_patience_s
    return {
        "CODA_SCHEDULING_POLICY": policy,
        "CODA_GATHER_S": f"{GATHER_S / speed:.6f}",
        "CODA_RECLAIM_MIN_RUNTIME_S": "0",
        "CODA_RECLAIM_EVICTIONS_PER_MINUTE": "0",
        "CODA_PROMISE_PATIENCE_S": f"{patience_s / speed:.6f}" if patience_s else "0",
    }


@asynccontextmanager
async def cluster_target(kubeconfig: Path | None) -> AsyncIterator[tuple[TargetCluster, Client]]:
    """Yield the cluster of a kubeconfig; the checker uses the same identity."""
    async with AsyncExitStack() as stack:
        client = await connect(users_kubeconfig(kubeconfig), timeout_s=30.0)
        stack.push_async_callback(client.close)
        yield (
            TargetCluster(
                client=client,
                shape=await shape_from_cluster(client),
                where=f"the cluster at {client.server}",
                kubectl=f"kubectl --kubeconfig {kubeconfig}" if kubeconfig else "kubectl",
                ended_parts=tuple,
            ),
            client,
        )


async def shape_from_cluster(client: Client) -> ClusterShape:
    """Return the cluster's nodes by GPUs and whole cores, most GPUs first. Raises InvalidInput if none has a GPU."""
    try:
        listing = await client.list_pages("/api/v1/nodes")
    except Rejected as error:
        raise InvalidInput(f"the cluster's nodes cannot be listed, so no row can be fitted to them: {error}") from error
    sizes: Counter[tuple[int, int]] = Counter()
    for node in listing["items"]:
        allocatable = node.get("status", {}).get("allocatable") or {}
        if node["spec"].get("unschedulable"):
            continue
        sizes[whole_from_quantity(allocatable.get(GPU, 0)), milli_from_quantity(allocatable.get("cpu", 0)) // 1000] += 1
    ordered = sorted(sizes.items(), reverse=True)
    groups = tuple(NodeGroup(nodes=count, gpus=gpus, cores=cores) for (gpus, cores), count in ordered)
    if not any(group.gpus for group in groups):
        raise InvalidInput("no schedulable node of this cluster has a GPU (allocatable nvidia.com/gpu)")
    return ClusterShape(groups=groups)
