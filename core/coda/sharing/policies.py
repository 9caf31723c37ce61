"""The table of sharing policies. A row says what a policy may do; the rules are in the other modules.

Rows without classes are rivals: what others do with the same jobs. They have no row in `coda.policy`, since they decide
about GPUs that jobs share, not about cores and nodes (decision 0104)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from coda.errors import InvalidInput
from coda.sharing.pairing import PairScore, duty_sum, equation_1, equation_1_log


class SharingPart(Enum):
    """A part of a policy that may be left out: what it is worth."""

    PACING = "pacing"
    MEMORY = "memory"
    RESERVATION = "reservation"
    PAIRING = "pairing"


class Companions(Enum):
    """Who may be put beside whom. NOBODY: one job per GPU. ANYBODY: without looking. FITTING: if the memory is enough.
    GAINING: and both together get more done than alone. OPPORTUNISTIC: only jobs that ask for nothing, beside any."""

    NOBODY = "nobody"
    ANYBODY = "anybody"
    FITTING = "fitting"
    GAINING = "gaining"
    OPPORTUNISTIC = "opportunistic"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPolicy:
    """One policy.

    companions: who may be beside whom
    score: how a partner is chosen among those that may; None: the first in the queue
    has_tenants: a tenant within its quota goes before others
    preempts: and stops their jobs
    paced: the guaranteed job's speed decides what the others get (`pace_control`)
    limits_memory: memory beyond the card lies on the host, and moves back (`memory_limits`); else jobs fail
    newcomer_fails: of two jobs with too much memory the second one fails; else both do
    spills: neither fails: what the second one lacks lies on the host until its end
    reserves: a gang that waits holds the GPUs that it has so far
    chooses: opportunistic jobs go where they are fastest; else to the least loaded GPUs"""

    summary: str
    companions: Companions
    score: PairScore | None = None
    has_tenants: bool = False
    preempts: bool = False
    paced: bool = False
    limits_memory: bool = False
    newcomer_fails: bool = False
    spills: bool = False
    reserves: bool = False
    chooses: bool = False

    @property
    def parts(self) -> tuple[SharingPart, ...]:
        """The parts that can be left out."""
        has = {
            SharingPart.PACING: self.paced,
            SharingPart.MEMORY: self.limits_memory,
            SharingPart.RESERVATION: self.reserves,
            SharingPart.PAIRING: self.chooses or self.score is not None,
        }
        return tuple(part for part, there in has.items() if there)


SHARING_DEFAULT: Final = "antman"

SHARING_POLICIES: Final[Mapping[str, SharingPolicy]] = MappingProxyType(
    {
        "antman": SharingPolicy(
            summary="two classes: guaranteed jobs as fast as alone, opportunistic ones beside them (Algorithm 1)",
            companions=Companions.OPPORTUNISTIC,
            has_tenants=True,
            paced=True,
            limits_memory=True,
            reserves=True,
            chooses=True,
        ),
        "yarn-cs": SharingPolicy(
            summary="one job per GPU; a tenant within its quota goes first, others use what is idle",
            companions=Companions.NOBODY,
            has_tenants=True,
            reserves=True,
        ),
        "yarn-cs-preempt": SharingPolicy(
            summary="as yarn-cs, and jobs beyond the quota are stopped and begin again",
            companions=Companions.NOBODY,
            has_tenants=True,
            preempts=True,
            reserves=True,
        ),
        "gandiva-pack": SharingPolicy(
            summary="arrival order; jobs that find no free GPU share the least loaded one if both gain (Gandiva)",
            companions=Companions.GAINING,
        ),
        "serial": SharingPolicy(summary="arrival order, one job per GPU", companions=Companions.NOBODY),
        "parallel-fcfs": SharingPolicy(
            summary="arrival order, two jobs per GPU, whatever memory they need", companions=Companions.ANYBODY
        ),
        "pack": SharingPolicy(
            summary="as parallel-fcfs, but only the second job fails if the memory is too small (AntMan's Table 2)",
            companions=Companions.ANYBODY,
            newcomer_fails=True,
        ),
        "universal-memory": SharingPolicy(
            summary="as pack, but what the second job lacks of memory lies on the host, for good (AntMan's Table 2)",
            companions=Companions.ANYBODY,
            spills=True,
        ),
        "memory-fcfs": SharingPolicy(
            summary="arrival order, two jobs per GPU if their memory fits", companions=Companions.FITTING
        ),
        "xonar": SharingPolicy(
            summary="two jobs per GPU if their memory fits, the partner by |rA rn - 1| (Eq. 1)",
            companions=Companions.FITTING,
            score=equation_1,
        ),
        "xonar-log": SharingPolicy(
            summary="as xonar, the partner by |log(rA rn)|", companions=Companions.FITTING, score=equation_1_log
        ),
        "xonar-sum": SharingPolicy(
            summary="as xonar, the partner by |uA + un - 1|", companions=Companions.FITTING, score=duty_sum
        ),
    }
)


def sharing_policy_of(name: str, without: Iterable[SharingPart] = ()) -> SharingPolicy:
    """Return the policy of that name without these parts. Raises InvalidInput for what it does not have."""
    policy = SHARING_POLICIES.get(name)
    if policy is None:
        raise InvalidInput(f"{name!r} is no sharing policy: choose one of {', '.join(SHARING_POLICIES)}")
    for part in without:
        if part not in policy.parts:
            raise InvalidInput(f"--without {part.value}: {name} has no {part.value} that could be left out")
    left_out = frozenset(without)
    return replace(
        policy,
        paced=policy.paced and SharingPart.PACING not in left_out,
        limits_memory=policy.limits_memory and SharingPart.MEMORY not in left_out,
        reserves=policy.reserves and SharingPart.RESERVATION not in left_out,
        chooses=policy.chooses and SharingPart.PAIRING not in left_out,
        score=None if SharingPart.PAIRING in left_out else policy.score,
    )
