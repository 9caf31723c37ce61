"""The queue of future events: a heap of (time, sequence, event)."""

from __future__ import annotations

from enum import Enum
from heapq import heappop, heappush

from coda_sim.engine.job_run import JobRun


class Event(Enum):
    """The kinds of events."""

    SUBMIT = "submit"
    RESTARTED = "restarted"  # the time that a restart costs is over: work goes on
    RESIZED = "resized"  # the pods can use the cores that the job was given
    PROFILED = "profiled"  # the cores at which the job is fastest are known now
    TUNING_WINDOW = "tuning window"  # a profiling step of the allocator is over
    WISH_AGAIN = "wish again"  # a job asks again for cores that were taken back
    NODE_WINDOW = "node window"  # a window of the eliminator is over, on one node
    WAKE = "wake"  # the planner asked for a cycle at this time
    END = "end"


class EventQueue:
    """The future events. Events at the same time come in the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Event, JobRun | None, int]] = []  # the int: version of the job, or node
        self._sequence = 0

    @property
    def next_s(self) -> float | None:
        """The time of the next event; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def pop(self) -> tuple[Event, JobRun | None, int]:
        """Remove and return the next event, with the version of the job that it was added for, or the node."""
        return heappop(self._heap)[2:]

    def add(self, at_s: float, event: Event, run: JobRun) -> None:
        """Add an event of a job. It is void if the job has another version by then.

        For a window or a profile that is another attempt, for a resize another resize."""
        self._sequence += 1
        version = run.version
        if event is Event.TUNING_WINDOW or event is Event.PROFILED or event is Event.WISH_AGAIN:
            version = run.attempt
        elif event is Event.RESIZED:
            version = run.resizes
        heappush(self._heap, (at_s, self._sequence, event, run, version))

    def add_node_window(self, at_s: float, node: int) -> None:
        """Add the end of a window of the eliminator on a node."""
        self._sequence += 1
        heappush(self._heap, (at_s, self._sequence, Event.NODE_WINDOW, None, node))

    def add_wake(self, at_s: float) -> None:
        """Add a time for a cycle of the planner, even if nothing else happens then."""
        self._sequence += 1
        heappush(self._heap, (at_s, self._sequence, Event.WAKE, None, 0))
