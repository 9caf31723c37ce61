"""The process that talks to the driver: what the agent says of GPUs while it hangs, and after it ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from coda_agent.gpus.devices import Health, LibraryState, Snapshot
from coda_agent.gpus.driver.gpus import Gpus
from coda_agent.gpus.driver_process import OPENS, SILENT, DriverPatience, DriverProcess
from coda_lab.emulators.nvml import NvmlState
from coda_lab.emulators.nvml.library import environment_for
from tests.agent.gpus.rig import NOW, advance, built_library, gpu, later
from tests.open_files import many_open_files

SLOW = DriverPatience(answer_s=20.0)  # a busy machine may start Python as slowly as that
HASTY = DriverPatience(answer_s=0.0)


class Driver(DriverProcess):
    """One whose patience a test can change."""

    def wait(self, patience: DriverPatience) -> None:
        self._patience = patience

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def reap(self) -> None:
        """Wait until the process that was killed has ended."""
        assert self._process is not None
        self._process.wait(20)


@pytest.fixture
def driver(state: NvmlState, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A process that has answered once, and settled."""
    for name, value in environment_for(built_library(), state.path, os.environ).items():
        monkeypatch.setenv(name, value)
    driver = Driver(SLOW)
    driver.sense(NOW)
    yield driver
    driver.close()
    driver.reap()


def healths(snapshot: Snapshot) -> list[Health]:
    return [reading.health for reading in snapshot.readings]


def test_it_says_what_nvml_says_in_this_process(state: NvmlState, driver: Driver) -> None:
    here = Gpus()
    here.sense(NOW)
    assert driver.sense(advance(state, later(10))) == here.sense(later(10))


def test_it_is_heard_by_an_agent_with_more_than_1024_open_files(driver: Driver) -> None:
    with many_open_files():
        another = Driver(SLOW)
        assert another.sense(NOW).library is LibraryState.READY
        another.close()
        another.reap()


def test_a_driver_that_is_slow_once_loses_no_gpu(state: NvmlState, driver: Driver) -> None:
    """Its late answer has all samples since the last one."""
    os.kill(driver.pid, signal.SIGSTOP)
    driver.wait(HASTY)
    silent = [driver.sense(advance(state, later(10 + second))) for second in range(3)]
    assert [(one.library, one.why) for one in silent] == [(LibraryState.READY, None)] * 3
    assert {reading.share for one in silent for reading in one.readings} == {None}
    os.kill(driver.pid, signal.SIGCONT)
    driver.wait(SLOW)
    answer = driver.sense(advance(state, later(13)))
    assert [reading.share for reading in answer.readings] == pytest.approx([0.6, 0.6])
    assert answer.at_s == later(10).monotonic_s


def test_an_error_is_told_once_also_while_the_driver_is_slow(state: NvmlState, driver: Driver) -> None:
    state.raise_xid(gpu(0).uuid, 48)
    assert [one.xid for one in driver.sense(later(1)).xids] == [48]
    driver.wait(HASTY)
    state.delay("nvmlDeviceGetMemoryInfo", 300_000)
    assert driver.sense(later(2)).xids == ()
    assert driver.sense(later(2 + DriverPatience().lost_s)).xids == ()


def test_a_driver_that_hangs_has_lost_its_gpus_and_nothing_else(state: NvmlState, driver: Driver) -> None:
    os.kill(driver.pid, signal.SIGSTOP)
    driver.wait(HASTY)
    for second in range(6):
        snapshot = driver.sense(advance(state, later(10 + second)))
    assert (snapshot.library, snapshot.why) == (LibraryState.SILENT, SILENT)
    assert healths(snapshot) == [Health.LOST, Health.LOST]


def test_a_process_that_hangs_for_long_is_replaced(state: NvmlState, driver: Driver) -> None:
    os.kill(driver.pid, signal.SIGSTOP)
    driver.wait(HASTY)
    for second in range(31):
        driver.sense(advance(state, later(10 + second)))
    hung = driver.pid
    driver.reap()
    driver.sense(advance(state, later(41)))
    driver.wait(SLOW)
    assert driver.sense(advance(state, later(42))).library is LibraryState.READY
    assert driver.pid != hung


def test_a_driver_that_opens_for_minutes_is_waited_for(state: NvmlState, driver: Driver) -> None:
    """Without persistence mode each GPU is set up by whoever opens it first."""
    another = Driver(HASTY)
    another.sense(NOW)
    os.kill(another.pid, signal.SIGSTOP)
    opening = another.pid
    for second in range(1, 300):
        snapshot = another.sense(advance(state, later(second)))
    assert (snapshot.library, snapshot.why) == (LibraryState.SILENT, OPENS)
    os.kill(another.pid, signal.SIGCONT)
    another.wait(SLOW)
    assert another.sense(advance(state, later(299))).library is LibraryState.READY
    assert another.pid == opening
    another.close()
    another.reap()


def test_a_driver_that_never_opens_is_killed_in_the_end(state: NvmlState, driver: Driver) -> None:
    another = Driver(HASTY)
    another.sense(NOW)
    os.kill(another.pid, signal.SIGSTOP)
    another.sense(advance(state, later(DriverPatience().open_s)))
    another.reap()
    for second in (301, 302, 303):
        snapshot = another.sense(advance(state, later(second)))
    assert snapshot.why == SILENT
    another.close()
    another.reap()


def test_while_a_killed_process_lives_on_no_other_one_starts(state: NvmlState, driver: Driver) -> None:
    """In the kernel's uninterruptible sleep SIGKILL does not end it; a hundred of them would help nobody."""

    class Undying(type(driver._process)):  # type: ignore[misc]
        def kill(self) -> None:
            pass

    assert driver._process is not None
    driver._process.__class__ = Undying
    os.kill(driver.pid, signal.SIGSTOP)
    driver.wait(HASTY)
    hung = driver.pid
    for second in range(100):
        snapshot = driver.sense(advance(state, later(10 + second)))
    assert driver.pid == hung
    assert snapshot.why == f"{SILENT}, and its process {hung} cannot be ended"
    driver._process.__class__ = Undying.__base__
    os.kill(hung, signal.SIGKILL)


def test_a_process_that_died_is_replaced_after_a_pause(state: NvmlState, driver: Driver) -> None:
    os.kill(driver.pid, signal.SIGKILL)
    driver.reap()
    driver.sense(advance(state, later(10)))
    driver.wait(SLOW)
    assert driver.sense(advance(state, later(11))).library is LibraryState.READY


def test_a_program_that_cannot_be_started_is_a_sentence() -> None:
    driver = DriverProcess(HASTY, command=("/nonexistent",))
    for second in range(6):
        snapshot = driver.sense(later(second))
    assert snapshot.why is not None
    assert "No such file or directory" in snapshot.why


def test_the_process_ends_with_its_agent(driver: Driver) -> None:
    """Also where the agent was killed: the other end of the socket is closed."""
    assert driver._socket is not None
    driver._socket.close()
    driver._socket = None
    driver.reap()
