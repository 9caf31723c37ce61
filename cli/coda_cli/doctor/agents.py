"""What the state of the node agents means: which are missing, silent or not ready, and what those that run lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from coda.wording import counted
from coda_cli.doctor.finding import NAMED, Finding, Level, few, unreadable
from coda_cli.doctor.seen import Seen
from coda_kube.failures.node_xids import is_silent
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import AGENT, GPU, SYSTEM_NAMESPACE
from coda_kube.objects.quantities import whole_from_quantity

_COMPONENT: Final = AGENT.removeprefix("coda-")
_PODS: Final = f"kubectl -n {SYSTEM_NAMESPACE} get pods -o wide -l app.kubernetes.io/component={_COMPONENT}"
_REFUSALS: Final = (
    f"kubectl -n {SYSTEM_NAMESPACE} describe daemonset {AGENT}: its events say who refuses pods"
    " (pod security, SCCs: docs/installing.md)"
)
_LACKS: Final = {
    "another program": "one program alone should use resctrl: see docs/decisions/0018",
    "hardware has no": "nothing: these nodes limit cores, and no memory bandwidth",
    "resctrl": "mount it on the node: mount -t resctrl resctrl /sys/fs/resctrl (Intel RDT, AMD QoS)",
    "does not open": "look at nvidia-smi and dmesg on the node: docs/runbooks/CodaGpuUnmeasured.md",
    "NVML": "install the driver and NVIDIA's container runtime, or set agent.driverPath (docs/installing.md)",
    "driver": "look at nvidia-smi on the node: its driver answers nothing",
}
"""What to do, by a word of what agents report; the first that fits."""


def agents(seen: Seen) -> Iterator[Finding]:
    """Yield whether an agent lives on each node with GPUs, and what agents lack."""
    about = "agents"
    if seen.nodes is None or seen.profiles is None:
        yield unreadable(about)
        return
    profile_by_node = {item["metadata"]["name"]: item for item in seen.profiles}
    with_gpus = [node["metadata"]["name"] for node in seen.nodes if gpus_of(node)]
    unready = [*_unready(seen)]
    if with_gpus and not profile_by_node and not unready:
        yield Finding(
            Level.NOTE, about, "none: no job is tuned, no pod is throttled", "agent.enabled=true in the chart"
        )
    elif with_gpus:
        dead = [*_dead(seen, with_gpus, profile_by_node), *unready]
        yield from dead
        if not dead:
            yield Finding(Level.GOOD, about, f"one on each of {counted(len(with_gpus), 'GPU node')}")
    lacks = Counter(lack for item in seen.profiles for lack in (item.get("status") or {}).get("lacks") or ())
    for lack, nodes in lacks.most_common(NAMED):
        yield Finding(Level.NOTE, about, f"{counted(nodes, 'node')}: {lack}", _fix_of_lack(lack))


def _dead(seen: Seen, with_gpus: list[str], profile_by_node: dict[str, Json]) -> Iterator[Finding]:
    about = "agents"
    without = [name for name in with_gpus if name not in profile_by_node]
    if without:
        fix = _REFUSALS if any(_podless(_status(item)) for item in _agent_sets(seen)) else _PODS
        yield Finding(Level.BAD, about, f"no NodeProfile of {few(without)}", fix)
    silent = [name for name in with_gpus if name in profile_by_node and is_silent(profile_by_node[name], seen.now_s)]
    if silent:
        fix = f"{_PODS}; where none is to run: kubectl delete nodeprofile NODE"
        yield Finding(Level.BAD, about, f"silent for two hours or more on {few(silent)}", fix)


def _unready(seen: Seen) -> Iterator[Finding]:
    """Yield how many pods the agents' DaemonSet lacks, and how many are not ready: a note while it is rolled out, when
    some always are.

    Nothing where it is not there, or not readable."""
    for item in _agent_sets(seen):
        status = _status(item)
        wanted, podless = int(status.get("desiredNumberScheduled") or 0), _podless(status)
        says = f"{podless} of {wanted} {'has' if podless == 1 else 'have'} no pod"
        if podless > _taken_by_roll_out(item):
            yield Finding(Level.BAD, "agents", says, _REFUSALS)
        elif podless:
            yield Finding(Level.NOTE, "agents", f"{says}, in a roll-out", f"if it stays so: {_REFUSALS}")
        created, ready = wanted - podless, int(status.get("numberReady") or 0)
        updated = int(status.get("updatedNumberScheduled") or 0)
        if ready < created and updated < created:
            yield Finding(Level.NOTE, "agents", f"a roll-out: {updated} of {wanted} are new, {ready} are ready")
        elif ready < created:
            yield Finding(Level.BAD, "agents", f"{created - ready} of {wanted} are not ready", _PODS)


def _agent_sets(seen: Seen) -> Iterator[Json]:
    """Yield the agents' DaemonSet, if it is there."""
    for item in seen.daemon_sets or ():
        if (item["metadata"]["namespace"], item["metadata"]["name"]) == (SYSTEM_NAMESPACE, AGENT):
            yield item


def _status(item: Json) -> Json:
    status: Json = item.get("status") or {}
    return status


def _taken_by_roll_out(item: Json) -> int:
    """On how many nodes a roll-out that goes on may have taken the old pod before it makes the new one; else 0.

    Where it takes fewer at once than lack a pod, their pods are refused."""
    status, strategy = _status(item), item["spec"].get("updateStrategy") or {}
    is_unseen = int(item["metadata"].get("generation") or 0) > int(status.get("observedGeneration") or 0)
    has_old = int(status.get("updatedNumberScheduled") or 0) < int(status.get("currentNumberScheduled") or 0)
    if strategy.get("type") == "OnDelete" or not (is_unseen or has_old):
        return 0
    most = str((strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1))
    if not most.endswith("%"):
        return int(most)
    wanted = int(status.get("desiredNumberScheduled") or 0)
    return -(-wanted * int(most.removesuffix("%")) // 100)  # rounded up, as its controller does


def _podless(status: Json) -> int:
    """On how many nodes a DaemonSet wants a pod and has none: the API server refuses them."""
    return max(0, int(status.get("desiredNumberScheduled") or 0) - int(status.get("currentNumberScheduled") or 0))


def gpus_of(node: Json) -> int:
    """Return how many GPUs the node offers."""
    return whole_from_quantity((node.get("status", {}).get("allocatable") or {}).get(GPU, 0))


def _fix_of_lack(lack: str) -> str:
    """What can be done about something that an agent lacks; empty where it is as the hardware is."""
    return next((fix for word, fix in _LACKS.items() if word in lack), "")
