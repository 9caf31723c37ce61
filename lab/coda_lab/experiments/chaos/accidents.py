"""Which accidents happen to the cluster, when and for how long: a pure function of a seed. They harm no part of Coda
directly, as faults do; they are what clusters do by themselves, and what administrators do by mistake.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from coda_lab.experiments.chaos.schedule import Fault, salvos


class Accident(Enum):
    """A kind of accident."""

    REBOOT = "nodes reboot"  # every container on them ends with 255, reason Unknown; told when they are back
    ALL_NOT_READY = "all nodes are cut off"  # a lost load balancer: containers run on, nobody hears the kubelets
    MOST_NOT_READY = "60 % of the nodes are cut off"
    CLOCK_JUMP = "one process's clock jumps"
    ETCD_RESTORE = "etcd is restored from a snapshot"
    LEASE_DELETED = "a Lease is deleted"
    OLD_CRD = "an older definition is applied for a while"
    DRAIN = "a node is drained"  # finished ranks too; then it is usable again
    POLICIES_REMOVED = "all admission policies are removed"
    DATABASE_LOCKED = "nobody can write to the history's database"


LASTS_S: Final[Mapping[Accident, tuple[float, float]]] = {
    Accident.REBOOT: (5.0, 30.0),
    Accident.ALL_NOT_READY: (90.0, 95.0),  # a node is given up 60 s after its kubelet was missed for 20 s
    Accident.MOST_NOT_READY: (90.0, 95.0),
    Accident.CLOCK_JUMP: (10.0, 30.0),
    Accident.ETCD_RESTORE: (8.0, 20.0),  # the age of the snapshot
    Accident.LEASE_DELETED: (5.0, 10.0),
    Accident.OLD_CRD: (15.0, 30.0),
    Accident.DRAIN: (5.0, 15.0),
    Accident.POLICIES_REMOVED: (10.0, 30.0),
    Accident.DATABASE_LOCKED: (20.0, 60.0),  # SQLite waits 5 s for a lock, and then says that it is locked
}
LONG: Final = frozenset({Accident.ALL_NOT_READY, Accident.MOST_NOT_READY})
CLOCKED: Final = ("operator", "planner")
JUMP_S: Final = 3600.0
MOST_REBOOTS: Final = 3
MOST_SHARE: Final = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishap:
    """One accident. `share`: of the nodes. `target`: whose clock or Lease. `jump_s`: how far that clock goes."""

    number: int
    accident: Accident
    lasts_s: float
    share: float = 0.0
    nodes: int = 0
    target: str = ""
    jump_s: float = 0.0
    choice: float = 0.0  # which node, of those that are right for it: 0..1


def accidents(seed: int, count: int, *, only: tuple[Accident, ...] = ()) -> tuple[Mishap, ...]:
    """The accidents of a run, in order; each kind as often as its number allows. `only`: these kinds, if any."""
    rng = random.Random(f"accidents {seed}")
    kinds = only or tuple(Accident)
    found: list[Accident] = []
    while len(found) < count:
        found += rng.sample(kinds, len(kinds))
    return tuple(_mishap(rng, number, kind) for number, kind in enumerate(found[:count], 1))


def timeline(faults: tuple[Fault, ...], mishaps: tuple[Mishap, ...]) -> tuple[tuple[Fault, ...] | Mishap, ...]:
    """The salvos of faults with the accidents spread evenly between them."""
    groups = salvos(faults)
    found: list[tuple[Fault, ...] | Mishap] = []
    taken = 0
    for number, salvo in enumerate(groups, 1):
        found.append(salvo)
        due = round(len(mishaps) * number / len(groups))
        found += mishaps[taken:due]
        taken = due
    return (*found, *mishaps[taken:])


def _mishap(rng: random.Random, number: int, accident: Accident) -> Mishap:
    lasts_s = round(rng.uniform(*LASTS_S[accident]), 2)
    target, sign, nodes, choice = rng.choice(CLOCKED), rng.choice((-1, 1)), rng.randint(1, MOST_REBOOTS), rng.random()
    return Mishap(
        number=number,
        accident=accident,
        lasts_s=lasts_s,
        share={Accident.ALL_NOT_READY: 1.0, Accident.MOST_NOT_READY: MOST_SHARE}.get(accident, 0.0),
        nodes=nodes if accident is Accident.REBOOT else 0,
        target=target if accident in (Accident.CLOCK_JUMP, Accident.LEASE_DELETED) else "",
        jump_s=sign * JUMP_S if accident is Accident.CLOCK_JUMP else 0.0,
        choice=round(choice, 4),
    )
