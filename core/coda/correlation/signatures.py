"""When two failures are the same: the same reason, and the same line but for what changes from run to run."""

from __future__ import annotations

import re
from typing import Final

from coda.diagnosis import Diagnosis, Reason

LONGEST: Final = 240
"""Characters of a signature. Our choice: a line of an exception seldom has more, and the status stays short."""
_LEAST_NAME: Final = 3  # a shorter name of a job may be a part of any word
_CHANGING: Final = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"  # a UUID
    r"|\b0x[0-9a-f]{1,40}"  # an address
    r"|\b(?=[a-f]{0,40}[0-9])[0-9a-f]{7,64}\b"  # a commit, a container
    r"|[0-9]{1,400}"
)
_RUN: Final = re.compile(r"#(?:[\s.,:x/_-]{1,4}#){1,400}")  # a shape, a list, a date, an address with its port
_SPACE: Final = re.compile(r"\s{1,400}")


def signature_of(found: Diagnosis, job_name: str) -> str:
    """Return what failures with one cause have in common; "" where the evidence is too little to compare.

    Numbers, addresses and the name of the job become `#`. Only a line of a log that names a cause is compared: exit
    codes and bare tracebacks are alike whatever the cause is. O(characters of the evidence)."""
    if found.line is None or not found.explicit or not found.evidence or found.reason is Reason.NO_SIGNATURE:
        return ""
    line = found.evidence.lower()
    if len(job_name) >= _LEAST_NAME:
        line = re.sub(rf"(?<![a-z0-9]){re.escape(job_name.lower())}(?![a-z0-9])", "#", line)
    line = _RUN.sub("#", _CHANGING.sub("#", line))
    return f"{found.reason.value}: {_SPACE.sub(' ', line).strip()}"[:LONGEST]
