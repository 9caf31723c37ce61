"""The agent's windows, a round a second, beside the core's search on the same signal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coda.allocator import TuningConfig, TuningPhase
from coda.allocator.tuning import TuningInput
from coda_agent.cluster import TunedJob
from coda_agent.tuning.observation import TuningObservation
from coda_agent.tuning.windows import Windows
from tests.agent.tuning.gangs import alone
from tests.core.allocator.searching import granted

CONFIG = TuningConfig()
SETTLE_S = 10.0
Shares = Callable[[int, int], float]  # (cores, second) -> utilisation


class Agent:
    """One job and its windows; every wish is granted at once."""

    def __init__(self, share: Shares, cores: int = 4) -> None:
        self.share = share
        self.windows = Windows(CONFIG, SETTLE_S, alone(), 16)
        self.now_s = 0
        self.tried: list[tuple[int, int]] = []  # second and cores of each step written
        tuning_input = TuningInput(attempt=1, cores=cores, gpus=1, most_cores=16)
        self.job = TunedJob(
            namespace="default", name="train", uid="u", version="1", tuning_input=tuning_input, tuning=None
        )

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            cores = self.job.tuning_input.cores
            share = self.share(cores, self.now_s)
            used = cores if share < self.share(16, self.now_s) else 0.0  # with too few it uses them all
            seen = TuningObservation(at_s=self.now_s, wall_s=self.now_s, container="c", share=share, cpu_cores=used)
            tuning = self.windows.step(self.job, seen)
            self.now_s += 1
            if tuning is None or tuning == self.job.tuning:
                continue
            self.job = replace(self.job, tuning=tuning)
            if tuning.phase is TuningPhase.WISHING:
                assert tuning.wish is not None
                self.job = replace(self.job, tuning_input=granted(self.job.tuning_input, tuning.wish, self.now_s))
            self.tried.append((self.now_s, self.job.tuning_input.cores))

    @property
    def phase(self) -> TuningPhase:
        assert self.job.tuning is not None
        return self.job.tuning.phase


def plateau(cores: int, _at_s: int) -> float:
    return 0.9 * min(1.0, cores / 4)


def test_a_window_at_other_cores_waits_until_they_have_settled_and_one_at_the_same_does_not() -> None:
    agent = Agent(lambda cores, at_s: 0.5 if at_s < 60 else plateau(cores, at_s))
    agent.run(400)
    seconds = [at_s for at_s, _cores in agent.tried]
    first, second = seconds[1], seconds[2]
    assert first == pytest.approx(SETTLE_S + 90, abs=3)
    assert second - first == pytest.approx(90, abs=3)  # the first window rose, so the start is measured once more


def test_a_tuned_job_is_watched_and_nothing_is_written_while_its_answer_stands() -> None:
    agent = Agent(plateau)
    agent.run(900)
    assert agent.phase is TuningPhase.TUNED
    steps = len(agent.tried)
    agent.run(1500)
    assert len(agent.tried) <= steps + 1  # the answer was confirmed


@pytest.mark.parametrize("cores", [2, 4, 8])
def test_a_tuned_job_whose_phase_needs_more_cores_gets_them(cores: int) -> None:
    agent = Agent(lambda cores, at_s: 0.9 * min(1.0, cores / (4 if at_s < 2400 else 8)), cores=cores)
    agent.run(2400)
    assert (agent.phase, agent.job.tuning_input.cores) == (TuningPhase.TUNED, 4)
    agent.run(3000)
    assert (agent.phase, agent.job.tuning_input.cores) == (TuningPhase.TUNED, 8)


def test_pauses_move_nothing() -> None:
    agent = Agent(lambda cores, at_s: 0.2 if at_s % 600 < 60 else plateau(cores, at_s))
    agent.run(4 * 3600)
    assert agent.job.tuning_input.cores == 4
