"""The core's eliminator over the rounds of one node: its state, and what it knows of jobs after a restart.

References are stored, because an agent that forgot them would have to try throttles to find out what it knew."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from coda.contention import Action, ContentionConfig, EliminatorState, Hardware, Window, disturbed_at_s, observe
from coda.contention.eliminator import recalled, without_refused
from coda.contention.reference import Reference, lasting
from coda.errors import CodaError
from coda_agent.host import StateDir
from coda_agent.modes import ThrottleMode
from coda_kube.objects.dataclass_json import plain_from_value, value_from_plain

log = logging.getLogger(__name__)

NAME: Final = "references.json"
MOST_BYTES: Final = 1 << 20
STORE_S: Final = 300.0
"""Seconds between two writes of references that follow slowly. New jobs and other cores are written at once."""


class Eliminator:
    """Decides which throttles to make and to release. `mode`: off decides nothing."""

    def __init__(self, config: ContentionConfig, mode: ThrottleMode, state_dir: StateDir) -> None:
        self._config = config
        self._mode = mode
        self._state_dir = state_dir
        self._state = EliminatorState()
        self._window: Window | None = None
        self._kept = {one.job: one for one in load_references(state_dir)}
        self._stored: tuple[Reference, ...] = tuple(self._kept.values())
        self._stored_at_s = float("-inf")

    @property
    def acts(self) -> bool:
        """True if its decisions are carried out."""
        return self._mode is ThrottleMode.ON

    def decide(self, window: Window, hardware: Hardware) -> tuple[Action, ...]:
        """Return what to do after one more window."""
        self._window = window
        if self._mode is ThrottleMode.OFF:
            return ()
        state = recalled(self._state, window.jobs, self._kept)
        self._state, actions = observe(state, window, hardware, self._config)
        return actions

    def give_up(self, refused: tuple[Action, ...]) -> tuple[Action, ...]:
        """Forget the throttles that the node refused to make; return what ends what there is of them."""
        self._state, ends = without_refused(self._state, refused, self._config)
        return ends

    def disturbed_at_s(self, pod_uid: str) -> float | None:
        """Return when contention or a neighbour last moved utilisations where the pod works; None: never.

        On the clock that never jumps. Utilisations of that time say nothing about the pod's own cores."""
        jobs = () if self._window is None else self._window.jobs
        sockets = next((job.sockets for job in jobs if job.job == pod_uid), frozenset[int]())
        return disturbed_at_s(self._state, sockets)

    def store(self, *, at_end: bool = False) -> tuple[str, ...]:
        """Store the references if they are due; return one sentence if that fails."""
        now_s = 0.0 if self._state.at_s is None else self._state.at_s
        found = lasting(self._state.references)
        same = [(one.job, one.cores) for one in found] == [(one.job, one.cores) for one in self._stored]
        is_due = at_end or not same or now_s - self._stored_at_s >= STORE_S
        if found == self._stored or not is_due or (not found and not at_end):
            return ()
        try:
            save_references(self._state_dir, found)
        except OSError as error:
            return (f"what training jobs need is not kept over a restart: {error}",)
        self._stored, self._stored_at_s = found, now_s
        return ()


def load_references(state_dir: StateDir) -> tuple[Reference, ...]:
    """Return the stored references; none if there are none or they cannot be read."""
    try:
        text = state_dir.read(NAME, most_bytes=MOST_BYTES)
        plain: Any = json.loads(text) if text else []
        return tuple(value_from_plain(Reference, one) for one in plain)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, CodaError) as error:
        log.warning("what an earlier agent knew of training jobs cannot be read: %s", error)
        return ()


def save_references(state_dir: StateDir, references: tuple[Reference, ...]) -> None:
    """Store `references` over restarts. Raises OSError if they cannot be stored.

    What says nothing is left out: an agent refuses fields that it does not know, and an older one may come back."""
    state_dir.replace(NAME, json.dumps([_told(one) for one in references]).encode())


def _told(reference: Reference) -> Mapping[str, Any]:
    blank = plain_from_value(Reference(job="", cores=0))
    return {name: value for name, value in plain_from_value(reference).items() if value != blank[name]}
