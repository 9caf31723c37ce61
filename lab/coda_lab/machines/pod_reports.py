"""What simulated pods say of their progress: real files in the folder of a simulated kubelet, as coda-job writes them.

Annotations `progress.coda.scheduler/<name>` of the pod of a rank 0. `step-seconds`: how long one step takes; without it
the pod says nothing. `total-steps`, `steps-per-epoch` (default 100), `best-epoch`: the loss falls until then (default:
always).

`stop-answer`: what it does once the agent has told it by the file `stop` that it is to save and end. `saved`: it says
that it has saved, as coda-job does. `link`, `pipe`, `huge` or `garbage`: its report becomes such a thing. Without it,
it goes on.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coda.errors import InvalidInput
from coda_agent.progress.report_file import VOLUMES
from coda_kube.objects.names import GROUP, JOB_VOLUME, LABEL_RANK, PROGRESS_FILE, STOP_FILE

log = logging.getLogger(__name__)

Json = Mapping[str, Any]

PREFIX: Final = f"progress.{GROUP}/"
EVERY_S: Final = 0.5  # between two reports of a pod

_NUMBERS: Final[Mapping[str, tuple[float, float]]] = {  # name -> least and most
    "step-seconds": (0.001, 1e6),
    "total-steps": (1, 1e9),
    "steps-per-epoch": (1, 1e9),
    "best-epoch": (0, 1e9),
}


ANSWERS: Final = ("saved", "link", "pipe", "huge", "garbage")
_ANSWER: Final = "stop-answer"
_ID: Final = re.compile(r"^id=(.+)$", re.MULTILINE)


@dataclass(slots=True)
class _Speaker:
    began_s: float
    numbers: Mapping[str, float]
    answer: str = ""
    said_s: float = -math.inf


class PodReports:
    """The reports of one machine's pods. `folder`: of all pods, as a kubelet has it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._speakers: dict[str, _Speaker | None] = {}  # by pod uid; None: it says nothing

    def follow(self, pods: Iterable[Json], now_s: float) -> None:
        """Let exactly the running ones among `pods` speak, each from when it was first seen."""
        running = {pod["metadata"]["uid"]: pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"}
        for uid in self._speakers.keys() - running.keys():
            del self._speakers[uid]
            shutil.rmtree(self._folder / uid, ignore_errors=True)
        for uid, pod in running.items():
            if uid not in self._speakers:
                self._speakers[uid] = _speaker(pod, now_s)

    def speak(self, now_s: float) -> None:
        """Write the reports that are due, each by a rename."""
        for uid, speaker in self._speakers.items():
            if speaker is None or now_s - speaker.said_s < EVERY_S:
                continue
            speaker.said_s = now_s
            folder = self._folder.joinpath(uid, *VOLUMES)
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder, report_text(speaker.numbers, now_s - speaker.began_s), speaker.answer)


def _write(folder: Path, text: str, answer: str) -> None:
    """Replace the report; as the answer says, where the pod was told to stop."""
    told, part = folder / STOP_FILE, folder / f".{PROGRESS_FILE}"
    if not answer or not told.exists():
        part.write_text(text)
    elif answer == "saved":
        step, id_ = text.partition("\n")[0].partition("=")[2], _ID.search(told.read_text())
        part.write_text(f"{text}saved={step}\nanswer={id_.group(1) if id_ else ''}\n")
    elif answer == "link":
        part.symlink_to("/etc/hostname")
    elif answer == "pipe":
        os.mkfifo(part)
    else:
        part.write_bytes(b"x" * 100_000 if answer == "huge" else b"answer=\xff\x00\n")
    part.replace(folder / PROGRESS_FILE)


def report_text(numbers: Mapping[str, float], passed_s: float) -> str:
    """What a job says that began `passed_s` ago."""
    total = numbers.get("total-steps")
    step = int(passed_s / numbers["step-seconds"])
    step = step if total is None else min(step, int(total))
    epoch = step / numbers.get("steps-per-epoch", 100.0)
    loss = 1.0 / (1.0 + min(math.floor(epoch), numbers.get("best-epoch", math.inf)))
    said = {"step": step, "epoch": epoch, "loss": loss} | ({} if total is None else {"total_steps": int(total)})
    return "".join(f"{name}={value!r}\n" for name, value in said.items())


def numbers_of(annotations: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a pod's annotations. Raises InvalidInput with the annotation's name."""
    found: dict[str, float] = {}
    for key, text in sorted(annotations.items()):
        name = key.removeprefix(PREFIX)
        if name in (key, _ANSWER):
            continue
        if name not in _NUMBERS:
            names = ", ".join(sorted([*_NUMBERS, _ANSWER]))
            raise InvalidInput(f"annotation {key} is unknown: the names are {names}")
        least, most = _NUMBERS[name]
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise InvalidInput(f"annotation {key} is {text!r}: give a number from {least:g} to {most:g}")
        found[name] = number
    return found


def answer_of(annotations: Mapping[str, Any]) -> str:
    """What a pod answers to a stop; "": nothing. Raises InvalidInput with the annotation's name."""
    answer = annotations.get(PREFIX + _ANSWER, "")
    if answer and answer not in ANSWERS:
        raise InvalidInput(f"annotation {PREFIX}{_ANSWER} is {answer!r}: give one of {', '.join(ANSWERS)}")
    return str(answer)


def _speaker(pod: Json, now_s: float) -> _Speaker | None:
    metadata, volumes = pod["metadata"], pod["spec"].get("volumes") or ()
    if (metadata.get("labels") or {}).get(LABEL_RANK) != "0" or JOB_VOLUME not in {one["name"] for one in volumes}:
        return None
    notes = metadata.get("annotations") or {}
    try:
        numbers, answer = numbers_of(notes), answer_of(notes)
    except InvalidInput as error:
        log.error("%s/%s: %s; it says nothing of its progress", metadata["namespace"], metadata["name"], error)
        return None
    return _Speaker(now_s, numbers, answer) if "step-seconds" in numbers else None
