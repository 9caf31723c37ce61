"""Which part meets which fault, when and for how long: a pure function of a seed. Nothing here touches a process.

A fault that `joins` begins `pause_s` after the one before it began; together they are a salvo. Every other fault begins
`pause_s` after the salvo before it has recovered and the load is up again. The schedule leaves out all that depends on
the system's speed, so the same seed gives the same schedule on every machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Target(Enum):
    """A target. Which of two replicas leads is known only at the moment of the fault."""

    OPERATOR = "operator"  # the replica that leads
    STANDBY_OPERATOR = "standby operator"  # the one that does not
    PLANNER = "planner"  # the extender that leads
    STANDBY_PLANNER = "standby planner"
    SCHEDULER = "kube-scheduler"
    ETCD = "etcd"
    API_SERVER = "kube-apiserver"


class Kind(Enum):
    """What happens to the target."""

    KILL = "kill"  # SIGKILL; started again after lasts_s: soon, or (a leader) once the standby has taken over
    STOP = "stop"  # SIGSTOP; SIGCONT after lasts_s
    DROP = "drop"  # no byte passes between it and the API server
    DELAY = "delay"  # every byte is late by delay_s
    RESET = "reset"  # its connections to the API server are reset, new ones too


STORAGE: Final = (Target.ETCD, Target.API_SERVER)
"""While one of these is away, nobody can read or write."""

LEADERS: Final = (Target.OPERATOR, Target.PLANNER)
STANDBYS: Final = (Target.STANDBY_OPERATOR, Target.STANDBY_PLANNER)

CUT: Final = tuple(target for target in Target if target not in STORAGE)
CUTS: Final = (Kind.DROP, Kind.DELAY, Kind.RESET)

DOWN_S: Final = (1.0, 3.0)  # at least a second, so that whole seconds tell before from after
LONGER_THAN_A_LEASE_S: Final = (12.0, 15.0)  # Leases last 10 s
STAYS_DOWN_SHARE: Final = 0.5  # of the kills of a leader: long enough that the standby takes over
DELAY_S: Final = (0.2, 1.5)
PAUSE_S: Final = (0.2, 2.0)  # the load is up again before it begins
JOIN_S: Final = (0.0, 1.5)
JOINS_SHARE: Final = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault; see the module for `pause_s`. `delay_s` is 0 except for Kind.DELAY."""

    number: int
    target: Target
    kind: Kind
    pause_s: float
    lasts_s: float
    delay_s: float = 0.0
    joins: bool = False


def schedule(seed: int, *, kills: int, stops: int, cuts: int) -> tuple[Fault, ...]:
    """The faults of a run, in order. Each kind is spread over the targets as evenly as its number allows."""
    rng = random.Random(f"faults {seed}")  # by text: stable between versions of Python
    pairs = _spread(rng, [(target, Kind.KILL) for target in Target], kills)
    pairs += _spread(rng, [(target, Kind.STOP) for target in Target], stops)
    pairs += _spread(rng, [(target, kind) for target in CUT for kind in CUTS], cuts)
    rng.shuffle(pairs)
    faults: list[Fault] = []
    for number, (target, kind) in enumerate(pairs, 1):
        faults.append(_fault(rng, number, target, kind, faults[-1] if faults else None))
    return tuple(faults)


def salvos(faults: tuple[Fault, ...]) -> tuple[tuple[Fault, ...], ...]:
    """The faults in salvos: those that join stand together."""
    found: list[tuple[Fault, ...]] = []
    for fault in faults:
        if fault.joins:
            found[-1] = (*found[-1], fault)
        else:
            found.append((fault,))
    return tuple(found)


def _fault(rng: random.Random, number: int, target: Target, kind: Kind, before: Fault | None) -> Fault:
    wants_to_join = rng.random() < JOINS_SHARE
    stays_down = rng.random() < STAYS_DOWN_SHARE and target in LEADERS
    joins = wants_to_join and before is not None and not before.joins and before.target is not target
    return Fault(
        number=number,
        target=target,
        kind=kind,
        pause_s=_between(rng, JOIN_S if joins else PAUSE_S),
        lasts_s=_between(rng, DOWN_S if kind is Kind.KILL and not stays_down else LONGER_THAN_A_LEASE_S),
        delay_s=_between(rng, DELAY_S) if kind is Kind.DELAY else 0.0,
        joins=joins,
    )


def _spread(rng: random.Random, choices: list[tuple[Target, Kind]], count: int) -> list[tuple[Target, Kind]]:
    found: list[tuple[Target, Kind]] = []
    while len(found) < count:
        found += rng.sample(choices, len(choices))
    return found[:count]


def _between(rng: random.Random, bounds_s: tuple[float, float]) -> float:
    return round(rng.uniform(*bounds_s), 3)
