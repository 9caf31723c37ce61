"""Lost devices and drivers: what the agent reports meanwhile, and how it recovers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coda_agent.gpus.devices import Health, LibraryState
from coda_agent.gpus.driver import nvml
from coda_agent.gpus.driver.gpus import Gpus, GpusConfig
from coda_lab.emulators.nvml import NvmlState
from tests.agent.gpus.rig import NOW, advance, gpu, later
from tests.agent.gpus.test_gpus import FIRST, SECOND, reading_of

QUICK = GpusConfig(settle_s=3.0, first_pause_s=1.0, longest_pause_s=8.0)


@pytest.fixture
def gpus(state: NvmlState) -> Gpus:
    gpus = Gpus(QUICK)
    gpus.sense(NOW)
    gpus.sense(advance(state, later(9)))
    return gpus


@pytest.mark.parametrize("code", [15, 16, 999])
def test_a_lost_device_is_lost_alone(state: NvmlState, gpus: Gpus, code: int) -> None:
    state.lose(FIRST, code)
    for second in range(10, 20):
        snapshot = gpus.sense(advance(state, later(second)))
        lost = reading_of(snapshot, FIRST)
        assert (lost.health, lost.share, lost.processes) == (Health.LOST, None, None)
        assert lost.why
        assert reading_of(snapshot, SECOND).share == pytest.approx(0.6)
        assert reading_of(snapshot, SECOND).health is Health.READY


def test_a_device_that_comes_back_settles_first(state: NvmlState, gpus: Gpus) -> None:
    state.lose(FIRST)
    gpus.sense(advance(state, later(10)))
    state.lose(FIRST, 0)
    healths = [reading_of(gpus.sense(advance(state, later(11 + second))), FIRST).health for second in range(5)]
    assert healths == [*[Health.SETTLING] * 3, *[Health.READY] * 2]


def test_a_device_that_came_back_under_an_old_session_is_found_by_a_new_one(state: NvmlState, gpus: Gpus) -> None:
    state.lose(FIRST)
    for second in range(10, 30):
        gpus.sense(advance(state, later(second)))
    state.lose(FIRST, 0)
    healths = [reading_of(gpus.sense(advance(state, later(30 + second))), FIRST).health for second in range(16)]
    assert healths[-1] is Health.READY


def test_sessions_are_opened_with_pauses_that_double_up_to_the_longest(state: NvmlState, gpus: Gpus) -> None:
    state.reload_driver()  # breaks the session at 10 s
    attempts: list[str] = []
    for second in range(10, 45):
        state.fail("nvmlInitWithFlags", 1000 + second)  # so the sentence tells when NVML was last opened
        why = gpus.sense(advance(state, later(second))).why
        if why is not None and why.startswith("nvmlInit:"):
            attempts.append(why.partition("(NVML 10")[2].rstrip(")"))
    assert list(dict.fromkeys(attempts)) == ["11", "12", "14", "18", "26", "34", "42"]


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each session that opens from now on."""
    found: list[str] = []

    def open_session() -> str:
        found.append(version := really_open())
        return version

    really_open = nvml.open_session
    monkeypatch.setattr(nvml, "open_session", open_session)
    return found


def test_a_device_that_stays_lost_is_searched_less_and_less(
    state: NvmlState, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = opened(monkeypatch)
    state.lose(FIRST)
    for second in range(10, 4 * 3600, 10):  # each search closes the driver for the healthy devices, too
        gpus.sense(advance(state, later(second)))
    assert 20 <= len(sessions) <= 40


def test_a_driver_that_is_away_is_asked_for_as_often_as_ever_beside_a_lost_device(
    state: NvmlState, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.lose(FIRST)
    for second in range(10, 4 * 3600, 10):
        gpus.sense(advance(state, later(second)))
    sessions = opened(monkeypatch)
    state.reload_driver()
    for second in range(4 * 3600, 4 * 3600 + 20):
        gpus.sense(advance(state, later(second)))
    assert len(sessions) == 1


def test_a_device_taken_off_the_bus_stays_in_the_answer_as_lost(state: NvmlState, gpus: Gpus) -> None:
    state.remove(FIRST)
    for second in range(10, 14):
        snapshot = gpus.sense(advance(state, later(second)))
        assert reading_of(snapshot, FIRST).health is Health.LOST
    assert reading_of(snapshot, FIRST).why == f"{FIRST} is not among the devices that the driver opens"
    assert reading_of(snapshot, SECOND).health is Health.READY
    assert reading_of(snapshot, SECOND).gpu.index == 0  # it moved up; its UUID is what counts


def test_a_reloaded_driver_is_opened_anew(state: NvmlState, gpus: Gpus) -> None:
    state.reload_driver()
    assert {reading.health for reading in gpus.sense(advance(state, later(10))).readings} == {Health.LOST}
    snapshots = [gpus.sense(advance(state, later(11 + second))) for second in range(5)]
    assert snapshots[0].library is LibraryState.READY
    assert {reading.health for reading in snapshots[0].readings} == {Health.SETTLING}
    assert [reading.share for reading in snapshots[-1].readings] == pytest.approx([0.6, 0.6])


def test_an_unloaded_driver_is_absent_until_it_is_back(state: NvmlState, gpus: Gpus) -> None:
    state.unload_driver()
    gpus.sense(advance(state, later(10)))
    snapshot = gpus.sense(advance(state, later(12)))
    assert (snapshot.library, snapshot.why) == (LibraryState.ABSENT, "nvmlInit: Driver Not Loaded (NVML 9)")
    assert [reading.health for reading in snapshot.readings] == [Health.LOST, Health.LOST]
    state.reload_driver()
    snapshots = [gpus.sense(advance(state, later(13 + second))) for second in range(12)]
    assert snapshots[-1].library is LibraryState.READY
    assert {reading.health for reading in snapshots[-1].readings} == {Health.READY}


def test_an_upgraded_driver_asks_for_a_new_process(state: NvmlState, gpus: Gpus) -> None:
    state.reload_driver("580.10.01")
    gpus.sense(advance(state, later(10)))
    snapshot = gpus.sense(advance(state, later(12)))
    assert snapshot.library is LibraryState.OUTDATED
    assert snapshot.why is not None
    assert "version mismatch" in snapshot.why
    state.reload_driver("570.86.15")
    assert gpus.sense(advance(state, later(40))).library is LibraryState.READY


def test_a_session_that_ends_by_itself_is_opened_anew(state: NvmlState, gpus: Gpus) -> None:
    state.fail("*", 1)  # uninitialised
    assert gpus.sense(advance(state, later(10))).library is LibraryState.FAILED
    state.fail("*", 0)
    assert gpus.sense(advance(state, later(12))).library is LibraryState.READY


def test_a_device_that_never_opened_is_named(state: NvmlState) -> None:
    state.fail("nvmlDeviceGetHandleByIndex_v2", 4, uuid=SECOND)
    snapshot = Gpus().sense(NOW)
    assert [reading.gpu.uuid for reading in snapshot.readings] == [FIRST]
    assert snapshot.unreadable == (
        "GPU 1 does not open: nvmlDeviceGetHandleByIndex: Insufficient Permissions (NVML 4)",
    )


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetCpuAffinityWithinScope", "nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetMigMode"]
)
def test_a_value_that_the_driver_does_not_know_hides_no_device(state: NvmlState, call: str) -> None:
    state.fail(call, 999)
    snapshot = Gpus(QUICK).sense(NOW)
    assert [reading.gpu.uuid for reading in snapshot.readings] == [FIRST, SECOND]
    assert snapshot.unreadable == ()


def test_a_gpu_plugged_in_later_is_found_when_a_session_opens(state: NvmlState, gpus: Gpus) -> None:
    state.add(gpu(2))
    gpus.close()
    assert len(gpus.sense(advance(state, later(10))).readings) == 3


def test_a_machine_without_the_library_has_no_gpus(tmp_path: Path) -> None:
    script = (
        "from coda_agent.gpus.driver.gpus import Gpus\n"
        "from coda_agent.gpus.samples import Moment\n"
        "snapshot = Gpus().sense(Moment(monotonic_s=0, wall_s=0, node_wall_s=0))\n"
        "print(snapshot.library.value, snapshot.readings, snapshot.why)"
    )
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    outcome = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert outcome.stdout.startswith("absent () nvmlInit: ")
