"""How the time of each live job goes, from every version of it that this process sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coda.history.delay_causes import TRIAL
from coda.history.time_spent import Doing, TimeSpent, begun, moved_on
from coda.model import FINISHED, Phase
from coda_kube.objects.pods.trial_spec import runs_trial

Item = Mapping[str, Any]

QUEUED: Final = "Queued"
"""The cause of a wait of which the planner has not yet said more."""
_FINISHED: Final = frozenset(phase.value for phase in FINISHED)
_HOLDING: Final = {
    Phase.LAUNCHED.value: Doing.HOLDING,
    Phase.STARTING.value: Doing.HOLDING,
    Phase.RUNNING.value: Doing.RUNNING,
}


class TimeLedger:
    """An account for each live job, by uid. It is closed by the end of its job, not here."""

    def __init__(self) -> None:
        self._by_uid: dict[str, TimeSpent] = {}

    def see(self, uid: str, status: Item, now_s: float) -> None:
        """The job has this status now. One that is not accepted, or has finished, changes nothing."""
        phase = status.get("phase")
        if phase is None or phase in _FINISHED:
            return
        doing = _HOLDING.get(phase, Doing.WAITING)
        cause = "" if doing is not Doing.WAITING else _cause(phase, status)
        if doing is not Doing.WAITING and runs_trial(status):  # of its own GPUs the gang has none yet
            doing, cause = Doing.WAITING, TRIAL
        known = self._by_uid.get(uid)
        self._by_uid[uid] = begun(doing, cause, now_s) if known is None else moved_on(known, doing, cause, now_s)

    def of(self, uid: str) -> TimeSpent | None:
        """Return the account of a job; None if this process has not seen it live."""
        return self._by_uid.get(uid)

    def forget(self, uid: str) -> None:
        """Its end is recorded, or it is gone."""
        self._by_uid.pop(uid, None)

    def forget_all(self) -> None:
        """Another process may change the jobs meanwhile: their accounts would miss it."""
        self._by_uid.clear()


def _cause(phase: str, status: Item) -> str:
    if phase != Phase.QUEUED.value:
        return phase
    code = (status.get("pending") or {}).get("code")
    return code if isinstance(code, str) and code else QUEUED
