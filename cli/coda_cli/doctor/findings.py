"""What a cluster's state means for Coda: one finding for each thing that is looked at, with what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from coda.wording import counted, listed
from coda_cli.doctor.agents import agents, gpus_of
from coda_cli.doctor.claimed_gpus import claimed_gpus
from coda_cli.doctor.daemon_sets import Guarded, guarded, kept_out
from coda_cli.doctor.finding import MOST_SKEW_S, NAMED, Finding, Level, few, unreadable
from coda_cli.doctor.parts import certificates, history_volume, node_clocks, scheduler, versions
from coda_cli.doctor.pool_taints import unreachable_pool
from coda_cli.doctor.seen import LEASES, Lead, Seen
from coda_cli.doctor.suspects import suspect_gpus
from coda_cli.doctor.tenants import owned_beyond
from coda_cli.doctor.topology import unlabelled_nodes
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GPU, OPT_IN, POOL_TAINT
from coda_kube.served_schema import APPLY_DEFINITIONS, missing_fields

CPU_JOBS_POLICY: Final = "coda-cpu-jobs"
OLDEST: Final = (1, 33)  # of Kubernetes
GPU_REPLICAS: Final = "nvidia.com/gpu.replicas"  # the label of NVIDIA's GPU feature discovery
CPU_JOBS_FROM: Final = (1, 36)


def findings(seen: Seen) -> Iterator[Finding]:
    """Yield what was found, the most basic first."""
    yield Finding(Level.GOOD, "cluster", f"{seen.server} answers")
    yield _kubernetes(seen)
    yield _definitions(seen)
    yield from versions(seen)
    yield from _leaders(seen)
    yield from scheduler(seen)
    yield from certificates(seen)
    yield from history_volume(seen)
    yield _policies(seen)
    yield from _cpu_jobs(seen)
    yield from _gpu_nodes(seen)
    yield from claimed_gpus(seen)
    yield from unlabelled_nodes(seen)
    yield from suspect_gpus(seen)
    yield from owned_beyond(seen)
    yield from agents(seen)
    yield _clock(seen)
    yield from node_clocks(seen)


def _kubernetes(seen: Seen) -> Finding:
    version = _version(seen)
    if version < OLDEST:
        return Finding(Level.BAD, "Kubernetes", f"{seen.version} is too old", f"upgrade to {_text(OLDEST)} or newer")
    if version < CPU_JOBS_FROM:
        return Finding(Level.NOTE, "Kubernetes", f"{seen.version}: CPU jobs need {_text(CPU_JOBS_FROM)}")
    return Finding(Level.GOOD, "Kubernetes", seen.version)


def _definitions(seen: Seen) -> Finding:
    about, fix = "definitions", APPLY_DEFINITIONS
    if seen.schema is None:
        return Finding(Level.BAD, about, "the API server does not know TrainingJobs", "install Coda, or: " + fix)
    missing = [*missing_fields(seen.schema)]
    if missing:
        return Finding(Level.BAD, about, f"older than this version: no {listed(missing[:NAMED])}", fix)
    return Finding(Level.GOOD, about, "complete")


def _leaders(seen: Seen) -> Iterator[Finding]:
    for lease, who in LEASES.items():
        found = seen.leads.get(lease)
        logs = f"kubectl -n coda-system logs deploy/coda-{'extender' if who == 'planner' else who}"
        if found is None:
            yield unreadable(who)
        elif found is Lead.NOBODY:
            yield Finding(Level.BAD, who, "no replica leads", logs)
        elif found is Lead.LEFT:
            yield Finding(Level.BAD, who, "its leader does not renew the Lease", logs)
        else:
            yield Finding(Level.GOOD, who, "leads")


def _policies(seen: Seen) -> Finding:
    about = "policies"
    if seen.refusing is None:
        return unreadable(about)
    ours = [item for item in seen.refusing if item["metadata"]["name"].startswith("coda-")]
    if not ours:
        says = "none: users may forge what Coda writes"
        return Finding(Level.BAD, about, says, "helm upgrade, or kubectl apply -f deploy/manifests")
    lax = [item for item in ours if "Deny" not in item["spec"]["validationActions"]]
    if lax:
        says = f"{len(lax)} of {len(ours)} only warn"
        return Finding(Level.NOTE, about, says, "policies.action=Deny in the chart")
    return Finding(Level.GOOD, about, f"{len(ours)} refuse what only Coda may write")


def _cpu_jobs(seen: Seen) -> Iterator[Finding]:
    about = "CPU jobs"
    if seen.namespaces is None or seen.mutating is None:
        yield unreadable(about)
        return
    opted_in = sum((item["metadata"].get("labels") or {}).get(OPT_IN) == "true" for item in seen.namespaces)
    if not opted_in:
        yield Finding(Level.NOTE, about, "no namespace takes part", f"kubectl label namespace NAMESPACE {OPT_IN}=true")
    elif not any(item["metadata"]["name"] == CPU_JOBS_POLICY for item in seen.mutating):
        says = f"{counted(opted_in, 'namespace')} opted in, but nothing makes CPU jobs of their pods"
        yield Finding(Level.BAD, about, says, "Kubernetes 1.36 and cpuJobs.enabled in the chart")
    else:
        yield Finding(Level.GOOD, about, f"{counted(opted_in, 'namespace')} opted in")
        yield from unreachable_pool(seen)


def _gpu_nodes(seen: Seen) -> Iterator[Finding]:
    about = "GPU nodes"
    if seen.nodes is None:
        yield unreadable(about)
        return
    yield from _daemon_sets(seen)
    with_gpus = [node for node in seen.nodes if gpus_of(node)]
    if not with_gpus:
        fix = "install NVIDIA's device plugin or GPU operator, with a toleration of the pool's taint"
        yield Finding(Level.BAD, about, f"no node shows {GPU}", fix)
        return
    yield from _sliced_gpus(with_gpus)
    pool = [node for node in with_gpus if _has_pool_taint(node)]
    gpus = counted(sum(map(gpus_of, with_gpus)), "GPU")
    if pool and len(pool) < len(with_gpus):
        outside = [node["metadata"]["name"] for node in with_gpus if not _has_pool_taint(node)]
        says = f"{few(outside)} of {len(with_gpus)} lack the pool's taint: others may take their GPUs"
        yield Finding(Level.NOTE, about, says, f"kubectl taint node NODE {POOL_TAINT}=:NoSchedule")
    else:
        tainted = ", all with the pool's taint" if pool else ""
        yield Finding(Level.GOOD, about, f"{len(with_gpus)} with {gpus}{tainted}")


def _sliced_gpus(nodes: Iterable[Json]) -> Iterator[Finding]:
    """GPUs that NVIDIA's device plugin offers several times under the name of whole ones."""
    labels = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in nodes}
    sliced = [name for name, its in labels.items() if re.fullmatch(r"0*([2-9]|[1-9]\d+)", its.get(GPU_REPLICAS) or "")]
    if sliced:
        offer = "offers" if len(sliced) == 1 else "offer"
        says = f"{few(sliced)} {offer} each GPU several times (time-slicing or MPS): ranks share them unseen"
        fix = "take the slices out of the device plugin's configuration, or rename them (`renameByDefault: true`)"
        yield Finding(Level.NOTE, "GPU nodes", says, fix)


def _daemon_sets(seen: Seen) -> Iterator[Finding]:
    kept = kept_out(seen.daemon_sets or (), seen.nodes or ())
    if kept:
        fix = f"if it must be there, add a toleration: {{key: {POOL_TAINT}, operator: Exists}}"
        yield Finding(Level.NOTE, "DaemonSets", f"{few(kept)} not on nodes of the pool", fix)
    if seen.namespaces is not None and seen.refusing != []:
        yield from _guarded(seen, [*guarded(seen.daemon_sets or (), seen.namespaces)])


def _guarded(seen: Seen, found: Sequence[Guarded]) -> Iterator[Finding]:
    """Those that programs change, a note until the pool has accounts; those made by hand, which no policy took away."""
    about, label = "DaemonSets", f"kubectl label namespace NAMESPACE {POOL_TAINT}=true"
    changed = few([f"{one.name} (now: {one.programs})" for one in found if one.programs])
    accounts = [
        f"{one['namespace']}/{one['name']}" if one.get("namespace") else str(one["name"])
        for one in (seen.pool_accounts or {}).get("subjects") or ()
    ]
    if changed and accounts:
        says = f"accounts of the pool may change {changed}: {listed(accounts)}; "
        yield Finding(Level.GOOD, about, says + "it is not seen whether its makers are among them")
    elif changed:
        says = f"the policies let only an administrator or an account of the pool change {changed}"
        yield Finding(Level.NOTE, about, says, f"{label}, or policies.poolAccounts in the chart")
    by_hand = [f"{one.name} ({one.hands})" for one in found if not one.programs]
    if by_hand:
        fix = f"delete those that users made while the policies only warned; {label} where the platform's are"
        yield Finding(Level.GOOD, about, f"on nodes of the pool, as made by hand: {listed(by_hand)}", fix)


def _clock(seen: Seen) -> Finding:
    if abs(seen.clock_ahead_s) > MOST_SKEW_S:
        says = f"this machine is {seen.clock_ahead_s:+.0f} s off the API server"
        return Finding(Level.NOTE, "clock", says, "set its clock by NTP: times that commands show are off by as much")
    return Finding(Level.GOOD, "clock", "as the API server's")


def _version(seen: Seen) -> tuple[int, int]:
    found = re.match(r"v?(\d+)\.(\d+)", seen.version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _has_pool_taint(node: Json) -> bool:
    return any(taint["key"] == POOL_TAINT for taint in node["spec"].get("taints") or ())
