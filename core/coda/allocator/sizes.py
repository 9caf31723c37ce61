"""The cores that the ranks of a running job have, and how far a change of them is. Decides nothing (`resizing` does).

Source: KEP-1287, in-place update of pod resources: a container has wanted cores (spec), allocated ones (promised by its
kubelet) and actual ones (as its runtime has them).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class ResizeState(Enum):
    """How far a granted change of cores is; the last two end it."""

    RESIZING = "Resizing"
    DEFERRED = "Deferred"  # a kubelet has no room now; it may have, until the deadline
    REVERTING = "Reverting"  # it cannot be: what was changed is taken back
    DONE = "Done"  # every rank runs with the cores granted
    REFUSED = "Refused"  # it could not be; nothing of it is left to be applied later


ENDED = frozenset({ResizeState.DONE, ResizeState.REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """What became of the last wish that was granted in an attempt."""

    attempt: int
    sequence: int  # of the wish
    state: ResizeState
    wanted: int  # cores per rank that were granted
    cores: int  # per rank, that every rank has now
    since_s: float  # since when it is in this state
    reason: str = ""  # one word; why not, or what is waited for
    message: str = ""

    @property
    def has_ended(self) -> bool:
        """True once nothing of it is under way."""
        return self.state in ENDED


class Obstacle(Enum):
    """Why the cores of a pod are never changed; the value is the reason told."""

    BEST_EFFORT = "BestEffort"  # its main container asks for no cores: there is nothing to set
    WOULD_RESTART = "RestartContainer"  # its resizePolicy says that a change restarts the container
    UNSUPPORTED = "ResizeUnsupported"  # its kubelet does not tell what its containers have


STATIC_CPU_MANAGER: Final = "StaticCPUManager"
"""The reason told where a node hands out whole cores to pods for good: no other count would do."""


class Progressing(Enum):
    """What a kubelet says about the last change of a pod."""

    NOTHING = "nothing is pending"
    UNSEEN = "it has not looked at the change yet"
    UNDER_WAY = "allocated, being applied"
    DEFERRED = "there is no room now"
    INFEASIBLE = "it will never be"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSize:
    """The cores of one rank's main container, in millicores."""

    name: str  # of the pod
    uid: str
    version: str  # the pod's resourceVersion, as seen
    container: str
    wanted_m: int
    allocated_m: int
    actual_m: tuple[int, ...]  # request and, where there is one, limit as the runtime has them
    says: Progressing = Progressing.NOTHING
    reason: str = ""  # of what it says: one word and a sentence
    message: str = ""
    obstacle: Obstacle | None = None
