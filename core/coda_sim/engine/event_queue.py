"""What is to happen and when: a heap of (time, sequence, event). What must not live here: what an event does."""

from __future__ import annotations

from enum import Enum
from heapq import heappop, heappush

from coda_sim.engine.job_run import JobRun


class Event(Enum):
    """What can happen."""

    SUBMIT = "submit"
    RESTARTED = "restarted"  # a restart is paid for: work goes on
    WINDOW = "window"  # a profiling step of the allocator is over
    LOOK = "look"  # a window of the eliminator is over, on one node
    WAKE = "wake"  # the planner wanted to be asked again
    END = "end"


class EventQueue:
    """The future. What happens at the same moment comes in the order in which it was planned."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Event, JobRun | None, int]] = []  # version, or the node to look at
        self._sequence = 0

    @property
    def next_s(self) -> float | None:
        """When something happens next; None: never."""
        return self._heap[0][0] if self._heap else None

    def pop(self) -> tuple[Event, JobRun | None, int]:
        """What happens next, with the version of the job it was planned for, or the node to look at."""
        return heappop(self._heap)[2:]

    def plan(self, at_s: float, event: Event, run: JobRun) -> None:
        """This happens to the job then, unless it is of another version (a window: of another attempt) by that time."""
        self._sequence += 1
        version = run.attempt if event is Event.WINDOW else run.version
        heappush(self._heap, (at_s, self._sequence, event, run, version))

    def plan_look(self, at_s: float, node: int) -> None:
        """A window of the eliminator is over then on that node."""
        self._sequence += 1
        heappush(self._heap, (at_s, self._sequence, Event.LOOK, None, node))

    def plan_wake(self, at_s: float) -> None:
        """The planner is asked then, whatever happens."""
        self._sequence += 1
        heappush(self._heap, (at_s, self._sequence, Event.WAKE, None, 0))
