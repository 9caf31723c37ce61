"""Nodes whose GPUs are suspect: Coda places nothing there for a while.

Evidence is of two weights. An Xid of faulty hardware, which the node's agent saw, is enough alone: no user can write
it, and no program causes it. What users say in logs, and Xids that their programs may cause, are weak: several users
must agree, a far smaller part of the pool is taken, and where the agent sees no Xid, logs about the hardware do not
count. What an agent saw never waits for what logs say. A cordon ends by time. Then comes the probation: evidence of six
hours still counts, until a run that begins there later succeeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from coda.diagnosis import Reason
from coda.diagnosis.xids import XIDS, SeenXid, XidKind, kind_of, xid_text

SEEN_USERS: Final = 2
"""Users of jobs that failed by an Xid which no program causes, but which alone is no reason to cordon. Our choice."""
SAID_USERS: Final = 4
"""Users whose logs agree, where nothing but logs speaks. Our choice: two who agree to lie are found easily, and four
lies each time for a fiftieth of the pool are not worth it."""
PROGRAM_USERS: Final = 3
"""Users whose programs met the same Xid that a program may cause. Source: `failure-signatures.md`, section 6."""
WINDOW_S: Final = 6 * 3600.0
"""How long evidence is remembered against a node. Our choice."""
CORDON_S: Final = 3600.0
"""Without further evidence the node is tried again after this. Our choice."""
RUN_PART: Final = 1 / 60
"""A run proves that GPUs work if it lasted this part of a cordon: a minute. Our choice: they were used."""
SHARE: Final = 0.1
"""Of the pool's nodes that are cordoned at once, at least one. Our choice: a bad driver may raise Xids everywhere."""
SAID_PART: Final = 0.2
"""Of that share, what weak evidence may take, at least one node. Our choice: so much capacity lies may cost."""
MOST_NODES: Final = 64
"""However large the pool is: every job that waits has the names in its status. Our choice."""
OF_THE_GPU: Final = frozenset({Reason.CUDA.value, Reason.CUDA_INIT.value, Reason.ECC.value})
"""Failures of one node's GPUs. Lost peers and networks are not: there another node may be at fault."""
_SILENT: Final = frozenset({Reason.CUDA_INIT.value})  # a broken container runtime raises no Xid
_ONCE_IS_LITTLE: Final = frozenset({94})  # contained: only that program dies, and the memory is replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A job that failed on a node by what is not its fault. `owner`: whom it counts for.

    `xid`: that the node's agent saw on its GPU; None: only the log speaks."""

    uid: str
    owner: str
    node: str
    reason: str
    time_s: float
    xid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeXid:
    """An Xid that the node's agent saw: when for the first time, and when last. `pods`: uids of those that had the
    GPU. `dated`: its agent knows when that was."""

    node: str
    gpu: str
    xid: int
    first_s: float
    time_s: float
    pods: tuple[str, ...] = ()
    dated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRun:
    """A job with GPUs that succeeded, on one of its nodes. `began_s`: of its last attempt."""

    node: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvidence:
    """All that speaks for and against nodes. `cleared_s`: since when an administrator trusts a node again.

    `watched`: nodes whose agent sees every Xid. `created_s`: since when a node is there: another one may have had its
    name before."""

    failures: Iterable[NodeFailure] = ()
    xids: Iterable[NodeXid] = ()
    runs: Iterable[NodeRun] = ()
    watched: frozenset[str] = frozenset()
    cleared_s: Mapping[str, float] = field(default_factory=dict)
    created_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """A node on which nothing is placed. `since_s`: when the evidence sufficed. `seen`: by the agent, not only said.

    `why`: for people, the rest of a sentence."""

    node: str
    why: str
    seen: bool
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """What follows. `cordons`: in force. `probation`: nodes whose cordon ended by time, and where no run succeeded.

    `ended`: by node, until when cordons would have lasted that are not in force; jobs forget these."""

    cordons: tuple[Cordon, ...] = ()
    probation: frozenset[str] = frozenset()
    ended: Mapping[str, frozenset[float]] = field(default_factory=dict)


def suspect_nodes(
    evidence: NodeEvidence, nodes: int, now_s: float, share: float = SHARE, cordon_s: float = CORDON_S
) -> NodeVerdict:
    """Return which nodes are cordoned: what agents saw before what logs say, of each the oldest first.

    `nodes`: of the pool. What exceeds the share waits. Ties go by name. O(evidence log evidence)."""
    # 1. What still counts, by node.
    failures, xids = list(evidence.failures), list(evidence.xids)
    absolved_s = _absolved_s(evidence.runs, cordon_s)
    open_failures: dict[str, list[NodeFailure]] = {}
    for failure in failures:
        wait_s = cordon_s if _is_hard(failure.xid) else 0.0
        is_of_it = failure.time_s > evidence.created_s.get(failure.node, 0.0)
        if is_of_it and _counts(failure.node, failure.time_s, wait_s, evidence, absolved_s, now_s):
            open_failures.setdefault(failure.node, []).append(failure)
    open_xids: dict[str, list[NodeXid]] = {}
    for one in xids:
        if _cordons_alone(one.xid) and _counts(one.node, one.time_s, cordon_s, evidence, absolved_s, now_s):
            open_xids.setdefault(one.node, []).append(one)

    # 2. What that makes of each node: the strongest reason, and of those the longest.
    by_node: dict[str, Cordon] = {}
    for node in sorted(open_failures.keys() | open_xids.keys()):
        mine = open_failures.get(node, [])
        trusted_s = max(absolved_s.get(node, 0.0), evidence.cleared_s.get(node, 0.0))
        found = [
            *_by_xids(open_xids.get(node, []), trusted_s, cordon_s),
            *_by_failures(mine, node in evidence.watched, cordon_s),
        ]
        if found:
            by_node[node] = max(found, key=lambda one: (one.until_s > now_s, one.seen, one.until_s, one.why))

    # 3. Which of them fit into the share.
    due = sorted(
        (one for one in by_node.values() if one.until_s > now_s),
        key=lambda one: (not one.seen, one.since_s, one.node),
    )
    most, most_said = most_cordons(nodes, share), most_cordons(nodes, share * SAID_PART)
    in_force: list[Cordon] = []
    for cordon in due:
        said = sum(1 for one in in_force if not one.seen)
        if len(in_force) < most and (cordon.seen or said < most_said):
            in_force.append(cordon)
    over = frozenset(one.node for one in by_node.values() if one.until_s <= now_s)
    return NodeVerdict(cordons=tuple(in_force), probation=over, ended=_ended(failures, xids, in_force, cordon_s))


def telling_runs(runs: Iterable[NodeRun], run: NodeRun) -> tuple[NodeRun, ...]:
    """Return the runs of one node that may still prove something, with a further one.

    One that began no later than another and lasted no longer proves nothing more. O(runs)."""
    if any(_says_all_of(other, run) for other in runs):
        return tuple(runs)
    return (*(other for other in runs if not _says_all_of(run, other)), run)


def most_cordons(nodes: int, share: float = SHARE) -> int:
    """Return how many nodes of a pool may be cordoned at once: at least one, but never the only node."""
    return min(MOST_NODES, max(1, int(nodes * share))) if nodes > 1 and share > 0 else 0


def is_of_node(reason: str, xid: int | None) -> bool:
    """True if a failure may speak against its node: by its reason, or by what the agent saw."""
    return reason in OF_THE_GPU or (xid is not None and kind_of(xid) is not XidKind.SECONDARY)


def _is_hard(xid: int | None) -> bool:
    return xid is not None and kind_of(xid) in (XidKind.HARDWARE, XidKind.NOTED)


def _cordons_alone(xid: int) -> bool:
    return kind_of(xid) is XidKind.HARDWARE and xid not in _ONCE_IS_LITTLE


def _says_all_of(run: NodeRun, other: NodeRun) -> bool:
    return run.began_s >= other.began_s and run.ended_s - run.began_s >= other.ended_s - other.began_s


def _absolved_s(runs: Iterable[NodeRun], cordon_s: float) -> Mapping[str, float]:
    """Return by node when the last run began that proves that its GPUs work."""
    found: dict[str, float] = {}
    for run in runs:
        if run.ended_s - run.began_s >= cordon_s * RUN_PART:
            found[run.node] = max(run.began_s, found.get(run.node, 0.0))
    return found


def _counts(
    node: str, time_s: float, wait_s: float, evidence: NodeEvidence, absolved_s: Mapping[str, float], now_s: float
) -> bool:
    """False for what is old, what an administrator cleared, and what a later run absolved.

    `wait_s`: a run counts only if it began so much later. Where hardware failed, it may have had another GPU."""
    is_fresh = now_s - WINDOW_S < time_s and time_s > evidence.cleared_s.get(node, 0.0)
    return is_fresh and not absolved_s.get(node, 0.0) >= time_s + wait_s


def _by_xids(xids: Iterable[NodeXid], trusted_s: float, cordon_s: float) -> Iterator[Cordon]:
    """Yield the cordon of one node. An Xid that comes again and again is as old as the first one since it was trusted:
    nodes that repeat one would else take each other's place in the share."""
    ordered = sorted(xids, key=lambda one: (one.time_s, one.gpu, one.xid))
    if ordered:
        last = ordered[-1]
        since_s = min(max(one.first_s, trusted_s) for one in ordered)
        why = f"its agent saw {xid_text(SeenXid(last.xid, last.gpu))}"
        yield Cordon(node=last.node, why=why, seen=True, since_s=since_s, until_s=last.time_s + cordon_s)


def _by_failures(failures: Iterable[NodeFailure], watched: bool, cordon_s: float) -> Iterator[Cordon]:
    """Yield the cordons that jobs of several users ask for: by one Xid, or by one reason."""
    seen: dict[int, list[NodeFailure]] = {}
    said: dict[str, list[NodeFailure]] = {}
    for failure in failures:
        if failure.xid is not None and kind_of(failure.xid) is not XidKind.SECONDARY:
            seen.setdefault(failure.xid, []).append(failure)
        is_belied = watched and failure.xid is None and failure.reason not in _SILENT
        if failure.reason in OF_THE_GPU and not is_belied:
            said.setdefault(failure.reason, []).append(failure)
    for xid, group in sorted(seen.items()):
        users = SEEN_USERS if _is_hard(xid) else PROGRAM_USERS
        yield from _agreed(group, users, f"Xid {xid}: {XIDS[xid].meaning}", _is_hard(xid), cordon_s)
    for reason, group in sorted(said.items()):
        yield from _agreed(group, SAID_USERS, reason, False, cordon_s)


def _agreed(group: Iterable[NodeFailure], users: int, what: str, seen: bool, cordon_s: float) -> Iterator[Cordon]:
    ordered = sorted(group, key=lambda failure: (failure.time_s, failure.uid))
    owners: list[str] = []
    since_s = 0.0
    for failure in ordered:
        if failure.owner not in owners:
            owners.append(failure.owner)
            since_s = failure.time_s if len(owners) == users else since_s
    if len(owners) >= users:
        last = ordered[-1]
        why = f"{what} in jobs of {len(owners)} users"
        yield Cordon(node=last.node, why=why, seen=seen, since_s=since_s, until_s=last.time_s + cordon_s)


def _ended(
    failures: Iterable[NodeFailure], xids: Iterable[NodeXid], in_force: Iterable[Cordon], cordon_s: float
) -> Mapping[str, frozenset[float]]:
    lasting = {(one.node, one.until_s) for one in in_force}
    ended: dict[str, set[float]] = {}
    times = [(one.node, one.time_s) for one in failures] + [(one.node, one.time_s) for one in xids]
    for node, time_s in times:
        if (node, time_s + cordon_s) not in lasting:
            ended.setdefault(node, set()).add(time_s + cordon_s)
    return {node: frozenset(moments_s) for node, moments_s in ended.items()}
