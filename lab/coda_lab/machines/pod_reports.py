"""What simulated pods say of their progress: real files in the folder of a simulated kubelet, as coda-job writes them.

Annotations `progress.coda.scheduler/<name>` of the pod of a rank 0. `step-seconds`: how long one step takes; without it
the pod says nothing. `total-steps`, `steps-per-epoch` (default 100), `best-epoch`: the loss falls until then (default:
always).
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coda.errors import InvalidInput
from coda_agent.progress.report_file import VOLUMES
from coda_kube.objects.names import GROUP, JOB_VOLUME, LABEL_RANK, PROGRESS_FILE

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


@dataclass(slots=True)
class _Speaker:
    began_s: float
    numbers: Mapping[str, float]
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
            part = folder / f".{PROGRESS_FILE}"
            part.write_text(report_text(speaker.numbers, now_s - speaker.began_s))
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
        if name == key:
            continue
        if name not in _NUMBERS:
            raise InvalidInput(f"annotation {key} is unknown: the names are {', '.join(sorted(_NUMBERS))}")
        least, most = _NUMBERS[name]
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise InvalidInput(f"annotation {key} is {text!r}: give a number from {least:g} to {most:g}")
        found[name] = number
    return found


def _speaker(pod: Json, now_s: float) -> _Speaker | None:
    metadata, volumes = pod["metadata"], pod["spec"].get("volumes") or ()
    if (metadata.get("labels") or {}).get(LABEL_RANK) != "0" or JOB_VOLUME not in {one["name"] for one in volumes}:
        return None
    try:
        numbers = numbers_of(metadata.get("annotations") or {})
    except InvalidInput as error:
        log.error("%s/%s: %s; it says nothing of its progress", metadata["namespace"], metadata["name"], error)
        return None
    return _Speaker(now_s, numbers) if "step-seconds" in numbers else None
