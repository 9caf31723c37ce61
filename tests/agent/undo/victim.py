"""A node agent that acts on this machine's kernel and kills itself with SIGKILL at a given step.

Arguments: the cgroup root, the resctrl root, the state directory, and the step (0: never)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from coda.contention import Action, Means, ThrottleReason
from coda_agent.cgroups.layout import find_layout
from coda_agent.host.files import Files
from coda_agent.host.state_dir import StateDir
from coda_agent.host.undo_journal import UndoJournal
from coda_agent.resctrl.groups import Groups
from coda_agent.throttling.actuator import Actuator
from coda_agent.throttling.restore import boot_id, restore_node
from tests.agent.cgroups.nodes import UID
from tests.agent.undo.killing import KillingDisk, Steps, killing_files, really_die


def main(cgroup: Path, resctrl: Path, state: Path, last: int) -> None:
    steps = Steps(last or None, really_die)
    plain = Files(cgroup=cgroup, resctrl=resctrl)
    files = killing_files(plain, steps)
    journal = UndoJournal(KillingDisk(StateDir(state), steps))
    layout, groups, boot = find_layout(files), Groups(files), boot_id(files)
    failures = restore_node(files=files, layout=layout, groups=groups, journal=journal, boot=boot).failures
    say(f"restored {failures}")
    actuator = Actuator(files=files, layout=layout, groups=groups, journal=journal, now_s=time.time, boot_id=boot)
    groups.add_pod(UID)
    for means, value in ((Means.CORES, 0.4), (Means.BANDWIDTH, 50), (Means.CORES, 0.2), (Means.BANDWIDTH, 40)):
        action = Action(
            means=means, socket=0, pods=(UID,), value=value, ends=False, reason=ThrottleReason.CONTENDED, jobs=()
        )
        say(f"acted {actuator.carry_out(action)}")
    say(f"steps {steps.count}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
