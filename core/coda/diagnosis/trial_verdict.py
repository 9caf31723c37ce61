"""Which failures of a trial the gang would share: those that neither the number of ranks nor the one GPU can cause.

A trial runs what the gang runs with a world of one. A model that is sharded over 32 GPUs does not fit on one of them,
and a script may insist on its number of ranks. Ending such a job would be worse than not to have tried it.
"""

from __future__ import annotations

import re
from typing import Final

from coda.diagnosis.classifier import Diagnosis
from coda.diagnosis.reasons import Reason, Retry

_WHATEVER_THE_SIZE: Final = frozenset(
    {
        Reason.SYNTAX,
        Reason.IMPORT,
        Reason.INPUTS,
        Reason.SEMANTIC,
        Reason.PERMISSION,
        Reason.LIBRARIES,
        Reason.CUDA_VERSION,
        Reason.OUTPUT,
    }
)
"""Reasons that lie in the program, its image or its files. Memory, GPUs, peers and divergence depend on the size."""

_OF_SIZE: Final = re.compile(
    r"world.{0,3}size|worldsize|\branks?\b|nproc|nnodes|num.?(?:gpus?|nodes?|processes|replicas|workers|devices)"
    r"|n_?gpus?\b|\bgpus?\b|device|cuda:\d|process.?group|divisib|divide|data.?parallel|tensor.?(?:model.?)?parallel"
    r"|pipeline|parallel|shard|mesh|local_rank|distributed|batch|accumulat|communicat|collective|replica|node count"
    r"|AssertionError|IndexError|ZeroDivisionError|StopIteration|KeyError: -?\d",
    re.IGNORECASE | re.ASCII,
)
"""Words of evidence that may speak of the size, and errors that a count of one easily causes without a word of it
(`assert world == 4`, `peers[1]`). Too many rather than too few: whoever is spared only starts its gang.
All repeats are bounded, so the search takes linear time."""


def would_fail_the_gang(found: Diagnosis) -> bool:
    """True if this failure of a trial ends the job: sure, never mended by a retry, and not of the trial's making.

    Sure is an explicit cause of class `no`, as for any attempt. O(evidence)."""
    is_sure = found.retry is Retry.NO and found.explicit
    return is_sure and found.reason in _WHATEVER_THE_SIZE and _OF_SIZE.search(found.evidence) is None
