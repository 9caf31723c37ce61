"""Runs inside the real node: halves a pod's cores as the agent does where bandwidth cannot be limited.

Arguments: a state directory, the pod's uid, its cores, and `measure` or `die`. `measure` prints as JSON how many cores
the pod used with its own limit, with half of it, and with its own again. `die` halves, and kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path

from coda.contention import Action, Means, ThrottleReason
from coda_agent.cgroups.layout import find_layout, find_pod
from coda_agent.cgroups.usage import CpuUse, rates_between, read_use
from coda_agent.host.files import Files
from coda_agent.host.state_dir import StateDir
from coda_agent.host.undo_journal import UndoJournal
from coda_agent.throttling.actuator import Actuator
from coda_agent.throttling.restore import boot_id

SPANS = 3  # of which the middle one counts: the machine itself may be stopped for a while
SPAN_S = 8.0
TOGETHER_S = 0.04  # between clock and counter: half a percent of a span


class Victim:
    """The pod, and what an agent does to it."""

    def __init__(self, state: Path, uid: str, cores: float) -> None:
        files = Files()
        layout = find_layout(files)
        assert layout is not None
        found = find_pod(files, layout, uid)
        assert found is not None
        self._files, self._layout, self._path = files, layout, found.path
        self._uid, self._cores = uid, cores
        self._actuator = Actuator(
            files=files,
            layout=layout,
            groups=None,
            journal=UndoJournal(StateDir(state)),
            now_s=time.time,
            boot_id=boot_id(files),
        )

    def halve(self, *, ends: bool) -> None:
        """Half the cores, or what they were."""
        value = self._cores if ends else self._cores / 2
        action = Action(
            means=Means.CORES,
            socket=0,
            pods=(self._uid,),
            value=value,
            ends=ends,
            reason=ThrottleReason.CONTENDED,
            jobs=(),
        )
        assert self._actuator.carry_out(action) == ()

    def cores_used(self) -> float:
        """The middle of some spans."""
        return statistics.median(self._span() for _ in range(SPANS))

    def _span(self) -> float:
        begin_s, before = self._sample()
        time.sleep(SPAN_S)  # what is measured is time
        end_s, after = self._sample()
        rates = rates_between(before, after, end_s - begin_s)
        assert rates is not None
        return rates.cores

    def _sample(self) -> tuple[float, CpuUse]:
        while True:
            before_s = time.monotonic()
            use = read_use(self._files, self._layout, self._path)
            assert use is not None
            if time.monotonic() - before_s < TOGETHER_S:
                return before_s, use


def main(state: Path, uid: str, cores: float, what: str) -> None:
    """Do `what`."""
    victim = Victim(state, uid, cores)
    if what == "die":
        victim.halve(ends=False)
        os.kill(os.getpid(), signal.SIGKILL)
    used = [victim.cores_used()]
    for ends in (False, True):
        victim.halve(ends=ends)
        used.append(victim.cores_used())
    sys.stdout.write(json.dumps(used))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4])
