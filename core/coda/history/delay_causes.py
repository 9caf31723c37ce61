"""What a wait counts as in reports: the planner's many codes, and the operator's words, by cause.

Source: Philly (Jeon et al., ATC 2019), section 3.1.1, which tells fair-share delay (others are owed more) from
fragmentation (no nodes that fit); the further causes are our choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from coda.history.time_spent import UNSEEN
from coda.model.decision import WaitCode


class DelayCause(Enum):
    """Why a job waited; the value is for people."""

    FAIR_SHARE = "fair share"  # what is free, or would be, is for others who go first
    CAPACITY = "capacity"  # too little was free, or not on the same nodes
    LOCALITY = "locality"  # enough was free, but not close together
    QUOTA = "quota"  # a ResourceQuota of its namespace
    HOLD = "hold"  # its own: suspended, asks for what does not exist
    RESTART = "restart"  # between two attempts
    CODA = "Coda"  # it could not be read, judged or written
    UNSEEN = "unseen"  # no operator saw it


_CAUSES: Final[Mapping[DelayCause, tuple[WaitCode, ...]]] = {
    DelayCause.FAIR_SHARE: (WaitCode.VIRTUAL_CLUSTER_FULL, WaitCode.HELD_BY_POLICY),
    DelayCause.CAPACITY: (
        WaitCode.INSUFFICIENT_GPUS,
        WaitCode.INSUFFICIENT_CPU,
        WaitCode.INSUFFICIENT_MEMORY,
        WaitCode.INSUFFICIENT_PODS,
        WaitCode.INSUFFICIENT_RESOURCES,
        WaitCode.RECLAIM_DELAYED,
        WaitCode.SEATS_TAKEN,
        WaitCode.GPU_MEMORY_TAKEN,
        WaitCode.GPUS_NOT_KNOWN,
        WaitCode.GPUS_TOO_BUSY,
    ),
    DelayCause.LOCALITY: (WaitCode.NO_DOMAIN_FITS, WaitCode.WAITS_FOR_LOCALITY),
    DelayCause.QUOTA: (WaitCode.QUOTA_EXCEEDED,),
    DelayCause.HOLD: (
        WaitCode.NO_MATCHING_NODE,
        WaitCode.NEVER_FITS,
        WaitCode.UNKNOWN_LEVEL,
        WaitCode.EDITED,
        WaitCode.SHARING_OFF,
        WaitCode.NO_SEATS,
    ),
    DelayCause.RESTART: (WaitCode.ROLLING_BACK, WaitCode.BACKING_OFF),
}

_CAUSE_BY_WORD: Final[Mapping[str, DelayCause]] = {
    **{code.value: cause for cause, codes in _CAUSES.items() for code in codes},
    "Suspended": DelayCause.HOLD,
    "Restarting": DelayCause.RESTART,
    UNSEEN: DelayCause.UNSEEN,
}


def delay_cause(word: str) -> DelayCause:
    """Return the cause of a wait by the word that a record has for it; what has no other cause is Coda's."""
    return _CAUSE_BY_WORD.get(word, DelayCause.CODA)
