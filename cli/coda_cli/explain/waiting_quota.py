"""What waiting CPU jobs have of their namespace's ResourceQuotas: Kubernetes counts pods that wait, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from coda.model import WaitCode
from coda.model.resources import NOTHING
from coda.wording import amounts_text, counted
from coda_cli.explain.waiting import Waiting

_REFUSED: Final = "exceeded quota"
"""In the API server's own sentence, for a job that it has not accepted yet."""


def waiting_in_quota(line: Waiting, lines: Iterable[Waiting]) -> Iterator[str]:
    """Yield how much the waiting pods of `lines`, of one namespace, hold of a quota that keeps a TrainingJob waiting.

    Nothing if the job waits for something else. Pods of one owner are taken for alike."""
    if line.pods or not (line.code == WaitCode.QUOTA_EXCEEDED.value or _REFUSED in line.message):
        return
    waiting = [other for other in lines if other.pods]
    pods = sum(other.pods for other in waiting)
    if pods:
        amounts = amounts_text(sum((other.pod * other.pods for other in waiting), NOTHING))
        yield f"Waiting pods hold quota too: {counted(pods, 'pod')} of CPU jobs in this namespace, with {amounts}."
