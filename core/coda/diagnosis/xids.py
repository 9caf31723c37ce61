"""Xids: the critical errors that the GPU driver reports, as the node's agent saw them on the GPU of a rank.

Users write logs; an Xid they cannot write, though their programs may cause some. So what only faulty hardware causes
decides over every log, what a program may cause helps where the log names nothing better.
Source: the vendor's catalogue of Xid errors (2025), as in `failure-signatures.md`, section 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from coda.diagnosis.reasons import Reason


class XidKind(Enum):
    """How much an Xid proves."""

    HARDWARE = auto()  # GPU, its memory, link or firmware failed: no program causes that
    NOTED = auto()  # the hardware recorded something and worked on: decides where nothing else does
    PROGRAM = auto()  # mostly the program's fault, or perhaps so
    SECONDARY = auto()  # a clean-up after another error, or after a kill: proves nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class XidFacts:
    """What an Xid says. `meaning`: for people, the rest of a sentence."""

    kind: XidKind
    reason: Reason
    meaning: str


@dataclass(frozen=True, slots=True, order=True)
class SeenXid:
    """An Xid on a GPU of a rank. `gpu`: its UUID."""

    xid: int
    gpu: str = ""


def _facts(kind: XidKind, reason: Reason, **meanings: str) -> Mapping[int, XidFacts]:
    return {
        int(name.removeprefix("x")): XidFacts(kind=kind, reason=reason, meaning=meaning)
        for name, meaning in meanings.items()
    }


_NVLINK_UNIT: Final = "an NVLink unit failed"
XIDS: Final[Mapping[int, XidFacts]] = {
    **_facts(
        XidKind.HARDWARE,
        Reason.ECC,
        x48="double-bit ECC error",
        x64="a memory row could not be remapped",
        x94="contained memory error",
        x95="uncontained memory error",
        x140="unrecovered ECC error",
        x171="uncorrectable error of the GPU's DRAM",
        x172="uncorrectable error of the GPU's SRAM",
    ),
    **_facts(
        XidKind.HARDWARE,
        Reason.CUDA,
        x46="the GPU stopped working",
        x62="the GPU's micro-controller halted",
        x74="NVLink error",
        x79="the GPU has fallen off the bus",
        x119="the GPU's system processor does not answer",
        x120="the GPU's system processor failed",
        x136="NVLink training failed",
        **{f"x{number}": _NVLINK_UNIT for number in range(144, 151)},
        x155="NVLink error",
    ),
    **_facts(XidKind.HARDWARE, Reason.CUDA_INIT, x143="the GPU could not be initialised"),
    **_facts(
        XidKind.NOTED,
        Reason.ECC,
        x63="a faulty memory row was remapped",
        x92="many single-bit ECC errors",
        x156="a memory resource was retired",
    ),
    **_facts(
        XidKind.PROGRAM,
        Reason.INVALID_ACCESS,
        x11="invalid command stream",
        x13="exception of a compute engine",
        x25="invalid command stream",
        x31="access to memory that is not mapped",
        x32="invalid command stream",
        x69="exception of a compute class",
    ),
    **_facts(
        XidKind.PROGRAM,
        Reason.CUDA,
        x38="the GPU's firmware watchdog fired",
        x109="a context switch timed out",
        x121="error of the link to the CPU",
        x137="NVLink refused an access",
        x158="a fatal timeout",
    ),
    **_facts(
        XidKind.SECONDARY,
        Reason.INVALID_ACCESS,
        x43="the program's channel was stopped",
        x45="the program's channels were cleaned up",
    ),
}
"""Those of which the catalogue says what they mean. Of others only the number is told."""


def kind_of(xid: int) -> XidKind:
    """Return how much an Xid proves; an unknown one proves nothing."""
    facts = XIDS.get(xid)
    return XidKind.SECONDARY if facts is None else facts.kind


def xid_text(seen: SeenXid) -> str:
    """Say in a few words what the driver reported."""
    facts = XIDS.get(seen.xid)
    return f"Xid {seen.xid}{f' on {seen.gpu}' if seen.gpu else ''}{f': {facts.meaning}' if facts else ''}"


def heaviest(seen: Iterable[SeenXid]) -> SeenXid | None:
    """Return the Xid that proves most, the lowest of several; None if none proves anything."""
    order = (XidKind.HARDWARE, XidKind.NOTED, XidKind.PROGRAM)
    known = [(order.index(kind), one) for one in seen if (kind := kind_of(one.xid)) in order]
    return min(known)[1] if known else None
