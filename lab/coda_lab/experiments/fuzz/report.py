"""The options of a run and its results: values, the verdict, the JSON. Measures nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from coda.wording import counted
from coda_lab.experiments.fuzz.sender import Sender

WARM_UP = "warm-up"
PARTS = ("part 1", "part 2", "part 3")
"""What comes after the warm-up, in equal numbers of requests."""

GROWTH_LIMIT_BYTES = 16 * 1024 * 1024
"""Growth of memory that counts: over 80 000 requests, 200 bytes for each."""

_OUR_FAULTS = ("500", "502", "504", "nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Send `count` requests from `seed`, with this many connections held open meanwhile."""

    count: int
    seed: int
    connections: int = 500


@dataclass(kw_only=True)
class Outcome:
    """The results. Memory is the resident set of the extender's process, in bytes."""

    options: Options
    sender: Sender
    honest_by_part: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory_by_part_bytes: dict[str, int] = field(default_factory=dict)  # after each
    memory_peak_bytes: int = 0
    connections_held: list[int] = field(default_factory=list)
    tracebacks: int = 0
    restarted: bool = False
    took_s: float = 0.0

    def problems(self) -> list[str]:
        """Each problem as a sentence; none if the run passed."""
        found = [
            f"{count} of kind {kind} ended as {status}"
            for (kind, status), count in sorted(self.sender.outcomes.items())
            if status in _OUR_FAULTS
        ]
        if self.restarted:
            found.append("the extender's process ended")
        if self.tracebacks:
            found.append(f"{counted(self.tracebacks, 'traceback')} in the extender's log")
        for part, seen in self.honest_by_part.items():
            if seen["wrong"]:
                found.append(f"{part}: {seen['wrong']} real requests not answered rightly: {seen['wrong_first'][0]}")
        if (grown := self.grown_bytes) > GROWTH_LIMIT_BYTES:
            found.append(f"the extender's memory grew by {grown / 2**20:.0f} MiB")
        return found

    @property
    def grown_bytes(self) -> int:
        """The growth of memory after the warm-up: as often the middle one of the parts' growths as there are parts.

        What leaks grows in every part. An allocator's high-water mark grows in one, once, and then stays: 23 MiB were
        seen on a machine so busy that many large bodies were in memory together (docs/benchmarks.md)."""
        memory = [self.memory_by_part_bytes[part] for part in (WARM_UP, *PARTS) if part in self.memory_by_part_bytes]
        growths = [after - before for before, after in pairwise(memory)]
        return len(PARTS) * round(median(growths)) if len(growths) == len(PARTS) else 0

    def as_json(self) -> dict[str, Any]:
        """The report."""
        by_kind: dict[str, dict[str, int]] = {kind: {} for kind in sorted(self.sender.sent)}
        for (kind, status), count in sorted(self.sender.outcomes.items()):
            by_kind[kind][status] = count
        return {
            "passed": not self.problems(),
            "problems": self.problems(),
            "seed": self.options.seed,
            "requests": sum(self.sender.sent.values()),
            "requests_by_kind": dict(sorted(self.sender.sent.items())),
            "answers_by_kind": by_kind,
            "took_s": round(self.took_s, 1),
            "real_requests": self.honest_by_part,
            "memory": {
                "measure": "VmRSS of the extender 12 s after the last hostile connection closed; peak: VmHWM",
                "grown_mib": round(self.grown_bytes / 2**20, 1),
                **{
                    f"after_{part.replace(' ', '_')}_mib": round(size / 2**20, 1)
                    for part, size in self.memory_by_part_bytes.items()
                },
                "peak_mib": round(self.memory_peak_bytes / 2**20, 1),
            },
            "connections": {
                "held_least": min(self.connections_held, default=0),
                "held_most": max(self.connections_held, default=0),
                "closed_by_the_extender": dict(sorted(self.sender.held_ends.items())),
            },
        }
