"""A sensor that never answers: throttles still end on time, SIGTERM ends the agent, and the next one starts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from coda.allocator import TuningPhase
from coda.errors import Outage
from coda_agent.gpus.devices import LibraryState, Snapshot, lost_reading
from coda_agent.gpus.driver.gpus import Gpus
from coda_agent.gpus.driver_process import SILENT
from coda_agent.gpus.samples import Moment
from coda_agent.host import StateDir, UndoJournal
from coda_lab.emulators.nvml.state import NvmlState
from coda_lab.emulators.silent_file import silent_folder
from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.test_contention import contended, is_untouched
from tests.agent.loop.test_tuning import one

ENDS_WITHIN_S = 10.0

ROOT = Path(__file__).parents[3]


def state_of(process: int) -> str:
    """The letter of /proc: D sleeps where no signal wakes it, Z has ended."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_with_a_driver_in_uninterruptible_sleep_the_agent_undoes_ends_and_can_start(
    needs_fuse: None, needs_gcc: None, tmp_path: Path
) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    NvmlState(path=folder / "nvml")
    with silent_folder(folder, tmp_path / "silent") as silent:
        command = [sys.executable, "-m", "tests.agent.loop.hanging", str(folder), str(silent.mount / "nvml")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as agent:
            assert agent.stdout is not None
            assert agent.stdout.readline().strip() == "throttled"
            pid, _, why = agent.stdout.readline().strip().partition(" ")
            assert agent.stdout.readline().strip() == "ready"
            assert why == f"{SILENT}, and its process {pid} cannot be ended"
            assert state_of(int(pid)) == "D"
            agent.terminate()
            agent.wait(ENDS_WITHIN_S)
            assert agent.stdout.readline().strip() == "untouched"
            assert agent.returncode == 0
        assert state_of(int(pid)) == "D"
        successor = UndoJournal(StateDir(folder / "state"))  # raises Outage while another process has the lock
        assert successor.entries == ()
        successor.close()


class HangingDriver:
    """A driver that stops answering, as `DriverProcess` tells of it."""

    def __init__(self) -> None:
        self._gpus = Gpus()
        self._last: Snapshot | None = None
        self.hangs = False

    def sense(self, now: Moment) -> Snapshot:
        if not self.hangs or self._last is None:
            self._last = self._gpus.sense(now)
            return self._last
        lost = tuple(lost_reading(one.gpu, SILENT) for one in self._last.readings)
        return replace(self._last, at_s=now.monotonic_s, library=LibraryState.SILENT, why=SILENT, readings=lost)

    def close(self) -> None:
        self._gpus.close()


@pytest.mark.parametrize("ends", [True, False], ids=["the cause ends", "the cause stays"])
async def test_throttles_end_on_time_while_the_driver_hangs(make_rig: MakeRig, ends: bool) -> None:
    driver = HangingDriver()
    rig = make_rig(gpus=driver)
    _train, hog = await contended(rig)
    assert rig.agent.throttles
    driver.hangs = True
    hog.bytes_per_s = 1e9 if ends else hog.bytes_per_s
    await rig.run(240)
    assert is_untouched(rig)
    assert rig.metric("coda_agent_sensor_up", sensor="nvml") == 0


class BlockingDriver:
    """A driver in the agent's own process: the call never returns."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.ends = threading.Event()

    def sense(self, now: Moment) -> Snapshot:
        self.asked.set()
        self.ends.wait()
        return Snapshot(at_s=now.monotonic_s, library=LibraryState.ABSENT)

    def close(self) -> None:
        self.ends.set()


async def test_undoing_waits_for_no_thread_that_hangs(make_rig: MakeRig) -> None:
    rig = make_rig()
    await contended(rig)
    rig.agent.sensor.gpus = driver = BlockingDriver()
    stopping = asyncio.Event()
    running = asyncio.create_task(rig.loop.run(stopping))
    await asyncio.to_thread(driver.asked.wait)
    stopping.set()
    try:
        await asyncio.wait({running}, timeout=ENDS_WITHIN_S)
        assert running.done()
        assert is_untouched(rig)
    finally:
        driver.close()
        await asyncio.gather(running, return_exceptions=True)


class Upgraded:
    """A driver that is upgraded under the agent, or that never had the library's version."""

    def __init__(self, *libraries: LibraryState) -> None:
        self._libraries = libraries
        self._began_s: float | None = None

    def sense(self, now: Moment) -> Snapshot:
        self._began_s = self._began_s or now.monotonic_s
        past_first = now.monotonic_s - self._began_s >= 10
        return Snapshot(at_s=now.monotonic_s, library=self._libraries[1 if past_first else 0])

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("libraries", "ends_after_s"),
    [
        pytest.param((LibraryState.READY, LibraryState.OUTDATED), 70, id="upgraded under it"),
        pytest.param((LibraryState.OUTDATED, LibraryState.OUTDATED), None, id="a new container would find the same"),
        pytest.param((LibraryState.READY, LibraryState.ABSENT), None, id="only unloaded"),
    ],
)
async def test_a_driver_upgraded_under_the_agent_ends_it(
    make_rig: MakeRig, libraries: tuple[LibraryState, LibraryState], ends_after_s: int | None
) -> None:
    """A new container is given the new library; nothing is left behind meanwhile."""
    rig = make_rig(gpus=Upgraded(*libraries), contention_window_s=1e-9)
    stopping = asyncio.Event()
    rounds = 0

    def advancing() -> Moment:
        nonlocal rounds
        rounds += 1
        if rounds > 200:
            stopping.set()
        return rig.node.advance()

    rig.loop._clock = advancing
    if ends_after_s is None:
        await rig.loop.run(stopping)
        return
    with pytest.raises(Outage, match="the GPU driver was upgraded"):
        await rig.loop.run(stopping)
    assert rounds == pytest.approx(ends_after_s, abs=10)  # each look at the clock is a second
    assert is_untouched(rig)


async def test_a_job_on_a_node_without_nvml_is_told_so(make_rig: MakeRig) -> None:
    """Not that it was granted no GPU: on other makers' GPUs that is not true."""
    absent = Upgraded(LibraryState.ABSENT, LibraryState.ABSENT)
    rig = make_rig(gpus=absent, window_s=5.0, settle_s=1.0)
    cluster = one(rig)
    await cluster.run(400)
    tuning = cluster.tuning("train")
    assert (tuning.phase, tuning.reason) == (TuningPhase.STOPPED, "NotMeasured")
    assert tuning.message == "this node's GPUs cannot be measured: NVML does not answer yet"


async def test_words_of_others_forge_no_line_of_the_log(make_rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    rig = make_rig()
    rig.loop._log_problems(("the driver says: 1\nERROR coda_agent all is lost\x1b[2J",))
    assert [record.getMessage() for record in caplog.records] == ["the driver says: 1 ERROR coda_agent all is lost [2J"]
