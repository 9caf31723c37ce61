"""Limits on this machine's own kernel (cgroup v1): a busy loop gets what was written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coda.contention import Action, Means, ThrottleReason
from coda_agent.cgroups.layout import Layout, Version, find_layout
from coda_agent.cgroups.limits import read_limit, write_limit
from coda_agent.cgroups.quota import CpuLimit
from coda_agent.cgroups.threads import threads_of
from coda_agent.cgroups.usage import CpuUse, rates_between, read_use
from coda_agent.host.files import Files
from coda_agent.host.state_dir import StateDir
from coda_agent.host.undo_journal import UndoJournal
from coda_agent.throttling.actuator import Actuator
from coda_agent.throttling.restore import boot_id, restore_node
from tests.agent.cgroups import real
from tests.agent.cgroups.nodes import UID
from tests.rigs import need

MEASURED_S = 3.0
TOGETHER_S = 0.01  # between clock and counter; longer when the test itself had to wait for a core
CONTAINER = "ab" * 32
ROOT = f"coda-test-{os.getpid()}"
POD = f"kubepods/burstable/pod{UID}"
MAIN = f"{POD}/{CONTAINER}"


def halving(*, ends: bool) -> Action:
    return Action(
        means=Means.CORES,
        socket=0,
        pods=(UID,),
        value=0.8 if ends else 0.4,
        ends=ends,
        reason=ThrottleReason.CONTENDED,
        jobs=(),
    )


def cores_used(files: Files, layout: Layout) -> float:
    """Cores used over some seconds, by the agent's own reading."""

    def sample() -> tuple[float, CpuUse]:
        while True:
            before_s = time.monotonic()
            use = read_use(files, layout, POD)
            assert use is not None
            if time.monotonic() - before_s < TOGETHER_S:
                return before_s, use

    begin_s, before = sample()
    time.sleep(MEASURED_S)  # what is measured is time
    end_s, after = sample()
    rates = rates_between(before, after, end_s - begin_s)
    assert rates is not None
    return rates.cores


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    need(real.has_v1(), "cgroup v1 (root, cpu and cpuacct controllers)")
    root = tmp_path / "cgroup"
    root.mkdir()
    with real.groups(f"{ROOT}/{MAIN}"):
        yield real.files_inside(ROOT, root)


@pytest.fixture
def layout(files: Files) -> Layout:
    found = find_layout(files)
    assert found is not None
    assert (found.version, found.root) == (Version.V1, "kubepods")
    return found


def test_a_busy_loop_gets_half_and_all_of_it_again_within_5_percent(files: Files, layout: Layout, state: Path) -> None:
    journal = UndoJournal(StateDir(state))
    write_limit(files, layout, MAIN, CpuLimit(quota_us=80_000))
    actuator = Actuator(
        files=files, layout=layout, groups=None, journal=journal, now_s=time.time, boot_id=boot_id(files)
    )
    with real.running(f"{ROOT}/{MAIN}", 2):
        assert actuator.carry_out(halving(ends=False)) == ()
        assert cores_used(files, layout) == pytest.approx(0.4, rel=0.05)
        assert actuator.carry_out(halving(ends=True)) == ()
        assert cores_used(files, layout) == pytest.approx(0.8, rel=0.05)
        assert len(threads_of(files, layout, POD)) == 2
    assert journal.entries == ()


def test_what_a_dead_agent_left_is_put_back_by_the_next(files: Files, layout: Layout, state: Path) -> None:
    write_limit(files, layout, MAIN, CpuLimit(quota_us=80_000))
    dead = UndoJournal(StateDir(state))
    Actuator(files=files, layout=layout, groups=None, journal=dead, now_s=time.time, boot_id=boot_id(files)).carry_out(
        halving(ends=False)
    )
    dead.close()
    assert read_limit(files, layout, MAIN) == CpuLimit(quota_us=40_000)
    journal = UndoJournal(StateDir(state))
    restored = restore_node(files=files, layout=layout, groups=None, journal=journal, boot=boot_id(files))
    assert [entry.target for entry in restored.put_back] == [MAIN]
    assert read_limit(files, layout, MAIN) == CpuLimit(quota_us=80_000)


def test_a_pod_cut_by_others_gives_its_container_all_that_v1_allows(files: Files, layout: Layout, state: Path) -> None:
    journal = UndoJournal(StateDir(state))
    write_limit(files, layout, MAIN, CpuLimit(quota_us=80_000))
    actuator = Actuator(
        files=files, layout=layout, groups=None, journal=journal, now_s=time.time, boot_id=boot_id(files)
    )
    actuator.carry_out(halving(ends=False))
    write_limit(files, layout, POD, CpuLimit(quota_us=60_000))
    assert actuator.carry_out(halving(ends=True)) == ()
    assert read_limit(files, layout, MAIN) == CpuLimit(quota_us=60_000)
