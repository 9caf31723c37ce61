"""The words of a diagnosis: the reasons of Philly's Table 6, their categories, and what follows by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Reason(Enum):
    """Why a job failed. Source: Philly (USENIX ATC 2019), Table 6, its words."""

    CPU_MEMORY = "CPU out of memory"
    INPUTS = "Incorrect inputs"
    SEMANTIC = "Semantic error"
    CORE_DUMP = "Core dump"
    INVALID_ACCESS = "Invalid memory access"
    CHECKPOINT = "Model checkpoint error"
    CUDA = "CUDA failure"
    SYNTAX = "Syntax error"
    TRACEBACK = "Traceback from crash"
    MPI = "MPI error"
    GPU_MEMORY = "GPU out of memory"
    MPI_RUNTIME = "MPI runtime failure"
    PERMISSION = "Permission error"
    IMPORT = "Import error"
    PREEMPTED = "Job preempted"
    CUDA_INIT = "CUDA init failed"
    DIVERGED = "Model diverged"
    CUDA_VERSION = "CUDA version mismatch"
    ECC = "GPU ECC error"
    OUTPUT = "Output node error"
    LIBRARIES = "Cannot load libs"
    NO_SIGNATURE = "No signature"


class Retry(Enum):
    """What the life cycle does with a job that failed so."""

    NO = "no"  # the same attempt fails again: stop at once
    ONCE = "once"  # one more attempt, then stop
    YES = "yes"  # as often as the job allows
    OTHER_NODE = "other-node"  # elsewhere, and not counted: the node is suspect, not the job


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonFacts:
    """What a reason means if its rule says nothing else. `category`: IF infrastructure, AE AI engine, U user."""

    category: str
    retry: Retry
    advice: str


FACTS: Final[Mapping[Reason, ReasonFacts]] = {
    Reason.CPU_MEMORY: ReasonFacts(
        category="AE/U",
        retry=Retry.ONCE,
        advice="ask for more memory (or /dev/shm), or use fewer data workers or smaller batches",
    ),
    Reason.INPUTS: ReasonFacts(
        category="IF/U", retry=Retry.NO, advice="check the path, the arguments and the data that the evidence names"
    ),
    Reason.SEMANTIC: ReasonFacts(
        category="IF/U", retry=Retry.NO, advice="mend the program or the versions of its libraries"
    ),
    Reason.CORE_DUMP: ReasonFacts(
        category="AE/U", retry=Retry.ONCE, advice="a library crashed: look at its version; faulthandler shows where"
    ),
    Reason.INVALID_ACCESS: ReasonFacts(
        category="U",
        retry=Retry.ONCE,
        advice="wrong memory was touched: CUDA_LAUNCH_BLOCKING=1 shows where",
    ),
    Reason.CHECKPOINT: ReasonFacts(
        category="IF", retry=Retry.YES, advice="check the checkpoint and the storage that holds it"
    ),
    Reason.CUDA: ReasonFacts(
        category="AE", retry=Retry.OTHER_NODE, advice="the GPU or its driver failed: another node is tried"
    ),
    Reason.SYNTAX: ReasonFacts(category="IF/U", retry=Retry.NO, advice="mend the syntax that the evidence shows"),
    Reason.TRACEBACK: ReasonFacts(
        category="IF/AE/U", retry=Retry.ONCE, advice="no known cause: read the traceback in the log of the rank"
    ),
    Reason.MPI: ReasonFacts(
        category="IF", retry=Retry.YES, advice="the ranks did not find each other: check addresses, ports and arguments"
    ),
    Reason.GPU_MEMORY: ReasonFacts(
        category="AE",
        retry=Retry.NO,
        advice="use a smaller batch, checkpoint activations, or shard over more GPUs",
    ),
    Reason.MPI_RUNTIME: ReasonFacts(
        category="IF", retry=Retry.OTHER_NODE, advice="a peer or the network failed: other nodes are tried"
    ),
    Reason.PERMISSION: ReasonFacts(
        category="U", retry=Retry.NO, advice="give the job the right to what the evidence names, or use another path"
    ),
    Reason.IMPORT: ReasonFacts(
        category="IF/U", retry=Retry.NO, advice="add the package to the image, or mend PYTHONPATH and its version"
    ),
    Reason.PREEMPTED: ReasonFacts(
        category="IF", retry=Retry.YES, advice="it was ended from outside: nothing to mend; it is queued again"
    ),
    Reason.CUDA_INIT: ReasonFacts(
        category="AE", retry=Retry.OTHER_NODE, advice="the GPU cannot be opened on this node: another node is tried"
    ),
    Reason.DIVERGED: ReasonFacts(
        category="U",
        retry=Retry.NO,
        advice="lower the learning rate, clip gradients, or check data and loss scale",
    ),
    Reason.CUDA_VERSION: ReasonFacts(
        category="AE", retry=Retry.NO, advice="use an image whose CUDA build fits the driver and the GPU"
    ),
    Reason.ECC: ReasonFacts(
        category="AE",
        retry=Retry.OTHER_NODE,
        advice="drain and reset the GPU: its memory is faulty; another node is tried",
    ),
    Reason.OUTPUT: ReasonFacts(category="U", retry=Retry.NO, advice="name an output node that the graph has"),
    Reason.LIBRARIES: ReasonFacts(
        category="AE",
        retry=Retry.NO,
        advice="add the shared library to the image, or mend LD_LIBRARY_PATH",
    ),
    Reason.NO_SIGNATURE: ReasonFacts(
        category="-",
        retry=Retry.YES,
        advice="nothing known was printed: read the log of the first failed rank",
    ),
}
"""Source: Table 6 for the categories; the retries follow the paper's advice and are our choice."""
