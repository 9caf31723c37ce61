"""What a job's progress file says: lines `name=value`, each believed or refused alone.

The file is written by whoever the user runs, so every number has bounds, and a line without its end counts as half
written. Names that are not known are left out: a newer library may write them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

MOST_BYTES: Final = 65536
"""Bytes that a progress file may have. Our choice: the library writes about 150."""

MOST_STEPS: Final = 10**15
"""The most steps. Our choice: a million steps a second for 30 years, and exact as a JSON number."""

MOST_EPOCHS: Final = 10**9
MOST_LOSS: Final = 1e30
"""The largest loss and learning rate that are believed, either sign. Our choice: far beyond what float32 sums reach."""

_SHOWN: Final = 40  # characters of a value that a sentence repeats
_WHOLE: Final = re.compile(r"[0-9]{1,16}")
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,320}\.?[0-9]{0,320}|\.[0-9]{1,320})(?:[eE][+-]?[0-9]{1,4})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What one file says, as far as it is believed. None: it says nothing of that."""

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None  # from 0; a fraction is a part of an epoch
    total_epochs: int | None = None
    loss: float | None = None
    loss_epoch: int | None = None  # the epoch that the loss is of; None: `epoch`
    learning_rate: float | None = None
    saved_step: int | None = None
    answer: str | None = None  # the id of the stop that it has answered by saving


def report_from_bytes(content: bytes) -> tuple[JobReport, str]:
    """Return what the file says, and a sentence about the first thing in it that is not believed ("" if all is).

    Of two lines with one name the later one counts. Never raises. O(bytes)."""
    if len(content) > MOST_BYTES:
        return JobReport(), f"the progress file is longer than {MOST_BYTES // 1024} KiB"
    if not content.isascii() or b"\0" in content:
        return JobReport(), "the progress file is not plain text of lines name=value"
    lines = content.decode("ascii").split("\n")
    faults: list[str] = []
    if lines[-1].strip():
        faults.append("the last line of the progress file has no end and may be half written: end it with a newline")
    texts: dict[str, str] = {}
    for line in lines[:-1]:
        name, sign, text = line.partition("=")
        if sign:
            texts[name.strip()] = text.strip()
        elif line.strip():
            faults.append(f"a line of the progress file is {_quoted(line.strip())}: write name=value")
    report = JobReport(
        step=_whole(texts, "step", 0, MOST_STEPS, faults),
        total_steps=_whole(texts, "total_steps", 1, MOST_STEPS, faults),
        epoch=_number(texts, "epoch", 0.0, float(MOST_EPOCHS), faults),
        total_epochs=_whole(texts, "total_epochs", 1, MOST_EPOCHS, faults),
        loss=_number(texts, "loss", -MOST_LOSS, MOST_LOSS, faults),
        loss_epoch=_whole(texts, "loss_epoch", 0, MOST_EPOCHS, faults),
        learning_rate=_number(texts, "lr", 0.0, MOST_LOSS, faults),
        saved_step=_whole(texts, "saved", 0, MOST_STEPS, faults),
        answer=_id(texts, "answer", faults),
    )
    return report, faults[0] if faults else ""


def _whole(texts: dict[str, str], name: str, least: int, most: int, faults: list[str]) -> int | None:
    text = texts.get(name)
    if text is None:
        return None
    number = int(text) if _WHOLE.fullmatch(text) else -1
    if least <= number <= most:
        return number
    faults.append(f"{name} is {_quoted(text)}: a whole number from {least} to {most} is believed")
    return None


def _number(texts: dict[str, str], name: str, least: float, most: float, faults: list[str]) -> float | None:
    text = texts.get(name)
    if text is None:
        return None
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    if least <= number <= most:
        return number + 0.0  # not -0.0
    faults.append(f"{name} is {_quoted(text)}: a number from {least:g} to {most:g} is believed")
    return None


def _id(texts: dict[str, str], name: str, faults: list[str]) -> str | None:
    text = texts.get(name)
    if text is None or _ID.fullmatch(text):
        return text
    faults.append(f"{name} is {_quoted(text)}: write the id of the file stop")
    return None


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
