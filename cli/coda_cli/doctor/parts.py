"""What the state of Coda's own parts means: versions, kube-scheduler's configuration, certificates, history, clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from coda.wording import counted
from coda_cli.doctor.finding import MOST_SKEW_S, Finding, Level, few, unreadable
from coda_cli.doctor.seen import Seen
from coda_cli.version.parts import skews
from coda_kube.certificates import end_s
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import POOL_TAINT, SCHEDULER

DAY_S: Final = 86_400.0
SOON_S: Final = 14 * DAY_S
"""Whoever issues them renews with 20 of 30 days left, so 14 days left say that nobody has renewed for days: as the
alert CodaCertificateEnds."""

_NODE_RULES: Final = ("matchExpressions", "matchFields")
_NODE_KEYS: Final = {"hostname", "metadata.name", "node", "nodename"}
"""What keys are called that name one node, such as `kubernetes.io/hostname` or `topology.topolvm.io/node`."""

_VERBS: Final = ("filterVerb", "prioritizeVerb", "preemptVerb")
_OPERATOR_ISSUES: Final = "kubectl -n coda-system logs deploy/coda-operator"
_CERT_MANAGER_ISSUES: Final = "kubectl -n coda-system describe certificates"
_ROLL_OUT: Final = "helm upgrade coda deploy/helm/coda -n coda-system --reset-then-reuse-values"


def versions(seen: Seen) -> Iterator[Finding]:
    """Yield what does not go together."""
    for sentence in (told := [*skews(seen.parts)]):
        yield Finding(Level.NOTE, "versions", sentence, "docs/upgrading.md; coda version shows all of them")
    if not told:
        yield Finding(Level.GOOD, "versions", "those that are known go together")


def scheduler(seen: Seen) -> Iterator[Finding]:
    """Yield what is wrong with the configuration of Coda's kube-scheduler."""
    about = "scheduler"
    if seen.scheduler is None:
        yield unreadable(about)
        return
    if not seen.scheduler:
        says = "no ConfigMap coda-scheduler in coda-system, so its configuration is not looked at"
        yield Finding(Level.NOTE, about, says, "only `coda local` and your own kube-scheduler do without it")
        return
    faults = [*_faults(seen)]
    for says in faults:
        yield Finding(Level.BAD, about, says, f"{_ROLL_OUT}, and no edits by hand")
    if not faults:
        yield Finding(Level.GOOD, about, f"profile {SCHEDULER} asks the extender")


def _faults(seen: Seen) -> Iterator[str]:
    assert seen.scheduler is not None
    try:
        found = yaml.safe_load(str((seen.scheduler.get("data") or {}).get("scheduler.yaml") or ""))
    except yaml.YAMLError:
        found = None
    if not isinstance(found, Mapping):
        yield "scheduler.yaml of the ConfigMap coda-scheduler cannot be read"
        return
    profile = next((one for one in _mappings(found, "profiles") if one.get("schedulerName") == SCHEDULER), None)
    if profile is None:
        yield f"no profile is called {SCHEDULER}: nothing places Coda's pods"
    elif "DefaultPreemption" not in str(profile.get("plugins")):
        yield "DefaultPreemption is not disabled: single ranks of a gang may be preempted"
    extenders = [one for one in _mappings(found, "extenders") if "coda-extender" in str(one.get("urlPrefix"))]
    if not extenders:
        yield "no extender is coda-extender: foreign pods may take what Coda has promised"
        return
    for verb in _VERBS:
        if not extenders[0].get(verb):
            yield f"the extender is not asked: {verb} is missing"
    if extenders[0].get("ignorable") and not _has_pool(seen):
        yield "ignorable is true, and no node has the pool's taint: while the extender is away, pods pass unseen"


def _mappings(parent: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The entries of a list that are mappings; a person may have written anything."""
    entries = parent.get(name)
    return [one for one in entries if isinstance(one, Mapping)] if isinstance(entries, list) else []


def _has_pool(seen: Seen) -> bool:
    """Whether a node has the taint; also if nodes cannot be read, as then nothing is known to be wrong."""
    if seen.nodes is None:
        return True
    return any(taint["key"] == POOL_TAINT for node in seen.nodes for taint in node["spec"].get("taints") or ())


def certificates(seen: Seen) -> Iterator[Finding]:
    """Yield whether the certificates between kube-scheduler and extender are good for some time."""
    about = "certificates"
    if seen.certificates is None:
        yield unreadable(about)
        return
    if not seen.certificates:
        fix = f"{_OPERATOR_ISSUES}; with certificates.issuer=certManager: {_CERT_MANAGER_ISSUES}"
        yield Finding(Level.BAD, about, "none: kube-scheduler cannot reach the extender", fix)
        return
    fix = _CERT_MANAGER_ISSUES if seen.by_cert_manager else _OPERATOR_ISSUES
    left_by_name = {name: _left_s(pem, seen.now_s) for name, pem in seen.certificates.items()}
    bad = [name for name, left_s in left_by_name.items() if left_s is None or left_s <= 0]
    late = [name for name, left_s in left_by_name.items() if left_s is not None and 0 < left_s < SOON_S]
    if bad:
        yield Finding(Level.BAD, about, f"{few(bad)} over or unreadable", fix)
    if late:
        yield Finding(Level.NOTE, about, f"{few(late)} over in less than {counted(int(SOON_S / DAY_S), 'day')}", fix)
    if not bad and not late:
        least_s = min(left_s for left_s in left_by_name.values() if left_s is not None)
        yield Finding(Level.GOOD, about, f"{len(left_by_name)}, good for {least_s / DAY_S:.0f} days or more")


def history_volume(seen: Seen) -> Iterator[Finding]:
    """Yield whether the operator can start on another node: SQLite's file is on a volume, which may not follow it."""
    about = "history"
    if seen.history_volume is None:
        yield unreadable(about)
    elif seen.history_volume and (nodes := nodes_of_volume(seen.history_volume)):
        says = f"its volume exists on {few(nodes)} only: while that is away, no operator runs and nothing is started"
        fix = "history.database=postgresql and operator.replicas=2, or a StorageClass whose volumes follow their pods"
        yield Finding(Level.NOTE, about, says, fix)
    elif seen.history_volume:
        yield Finding(Level.GOOD, about, "its volume can follow the operator to another node")


def nodes_of_volume(volume: Json) -> list[str]:
    """Return the nodes that a PersistentVolume is bound to by name; none for one of a zone or of the network."""
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required") or {}
    terms = required.get("nodeSelectorTerms") or ()
    rules = [rule for term in terms for field in _NODE_RULES for rule in term.get(field) or ()]
    by_name = [rule for rule in rules if str(rule.get("key")).rpartition("/")[2] in _NODE_KEYS]
    return sorted({str(value) for rule in by_name for value in rule.get("values") or ()})


def _left_s(pem: bytes, now_s: float) -> float | None:
    until_s = end_s(pem)
    return None if until_s is None else until_s - now_s


def node_clocks(seen: Seen) -> Iterator[Finding]:
    """Yield the nodes whose clocks are off."""
    about = "node clocks"
    if seen.node_clocks_s is None:
        yield unreadable(about)
        return
    off = {name: ahead_s for name, ahead_s in seen.node_clocks_s.items() if abs(ahead_s) > MOST_SKEW_S}
    if off:
        worst = sorted(off, key=lambda name: (-abs(off[name]), name))
        says = f"{few([f'{name} ({off[name]:+.0f} s)' for name in worst])} off the API server"
        yield Finding(Level.NOTE, about, says, "run NTP there (chrony): waits and time-outs are off by as much")
    elif seen.node_clocks_s:
        yield Finding(Level.GOOD, about, f"{counted(len(seen.node_clocks_s), 'node')} as the API server's")
