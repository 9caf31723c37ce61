"""What is remembered of a process, and how much of what it says."""

from __future__ import annotations

from coda.sharing.config import GIB
from coda_agent.sharing import Coordinator
from coda_agent.sharing.members import MOST_PEAKS, PEAK_S, Process
from coda_agent.sharing.messages import MOST_GPUS, GpuClaim, Message
from tests.agent.sharing.test_coordinator import CONFIG, GPU, claim, shared, steps


def entries(process: Process) -> int:
    return sum(map(len, process.peaks.values())) + sum(map(len, process.hosts.values()))


def falling(number: int, *gpus: str) -> Message:
    """A report whose every value is a new entry in a list of falling ones."""
    size = 2**61 - number
    claims = [
        GpuClaim(gpu=gpu, device_bytes=size, host_bytes=size, reserve_bytes=0, floor_bytes=0, refusals=0)
        for gpu in gpus
    ]
    return Message(kind="steps", count=9, gpus=tuple(claims))


def test_reports_that_fall_a_hundred_times_a_second_are_one_entry_a_second() -> None:
    process = Process()
    for number in range(int(100 * 2 * PEAK_S)):
        process.take(falling(number, GPU), number / 100)
        assert entries(process) <= 2 * MOST_PEAKS


def test_the_most_of_a_second_counts_for_a_minute_and_what_came_later_for_longer() -> None:
    process = Process()
    for now_s, size in ((10.1, 30), (10.2, 50), (10.9, 40), (11.5, 20), (12.5, 35), (40.0, 10)):
        process.take(steps(9, claim(size)), now_s)
    assert process.peak_bytes(GPU) == 50 * GIB
    process.forget({GPU}, 10.9 + PEAK_S + 0.1)
    assert process.peak_bytes(GPU) == 35 * GIB
    process.forget({GPU}, 500.0)
    assert process.peak_bytes(GPU) == 10 * GIB  # it has said nothing else since


def test_names_that_are_no_gpu_of_this_node_are_forgotten_in_each_round() -> None:
    coordinator = Coordinator(CONFIG)
    coordinator.join("o1", "o")
    process = coordinator._peers["o1"].process
    for second in range(3):
        for number in range(100):
            names = [f"{second}-{name}" for name in range(MOST_GPUS - 1)]
            coordinator.take("o1", falling(100 * second + number, *names, GPU), second + number / 100)
        coordinator.round([shared(None)], second + 1.0)
        assert process.peaks.keys() == process.hosts.keys() == {GPU}
        assert process.refusals.keys() <= {GPU}


def test_a_gpu_that_is_away_for_a_moment_is_remembered_as_long_as_a_peak() -> None:
    """The driver does not answer, perhaps: a limit below the job's peak would end it."""
    coordinator = Coordinator(CONFIG)
    coordinator.join("o1", "o")
    process = coordinator._peers["o1"].process
    coordinator.take("o1", steps(9, claim(50)), 0.0)
    coordinator.round([shared(None)], 1.0)
    coordinator.round([], 1.0 + PEAK_S - 1)
    assert process.peak_bytes(GPU) == 50 * GIB
    coordinator.round([], 1.0 + PEAK_S + 1)
    assert process.peak_bytes(GPU) == 0
