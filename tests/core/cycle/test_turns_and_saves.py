"""Jobs take turns, and each gets on, if it saves now and then: after a stop that threw work away its next turn is
longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.model import JobId
from coda.model.decision import StopCause
from coda.policy import PolicyConfig
from coda.policy.preemption_rules import LEAST_RUN_LIMIT_S, LEAST_RUN_S, least_run_s
from tests.builders import job, node
from tests.core.play import Play

pytestmark = pytest.mark.heavy

HOUR_S = 3600.0
LONG = JobId("team/long")


class SavingPlay(Play):
    """A job that is stopped loses what it has done since its last regular save in this attempt."""

    def __init__(self, save_every_s: float) -> None:
        super().__init__(PolicyConfig(policy="coda", levels=()), (node("a", gpus=8, cores=64),))
        self.save_every_s = save_every_s
        self.ran_s = self.kept_s = 0.0  # of the long job

    def _stop(self, job_id: JobId, cause: StopCause) -> None:
        ran_s = self.now_s - self.job_by_id[job_id].as_of_s
        lost_s = ran_s % self.save_every_s
        super()._stop(job_id, cause)
        self.job_by_id[job_id] = replace(self.job_by_id[job_id], lost_s=lost_s)
        self.ran_s += ran_s
        self.kept_s += ran_s - lost_s


def played(save_every_s: float, days: float) -> SavingPlay:
    """A job of all GPUs, and one of five minutes that asks for them every fifteen."""
    play = SavingPlay(save_every_s)
    play.submit(job("long", gpus=8, cores=8, resumable=True))
    for number in range(int(days * 96)):
        play.settle()
        play.submit(job(f"new{number}", gpus=8, cores=8, resumable=True))
        for step_s in (60.0, 240.0, 600.0):
            play.settle()
            for name in play.running():
                if name != LONG and play.now_s - play.job_by_id[name].as_of_s >= 300.0:
                    play.end(name)
            play.settle()
            play.now_s += step_s
    return play


@pytest.mark.parametrize("save_every_s", [400.0, 1800.0, 1.9 * HOUR_S])
def test_whoever_saves_once_in_two_hours_gets_on_however_many_jobs_come(save_every_s: float) -> None:
    play = played(save_every_s, days=1)
    assert play.kept_s >= play.ran_s / 4 > HOUR_S


@pytest.mark.parametrize(
    ("lost_s", "least_s"),
    [(0.0, LEAST_RUN_S), (100.0, LEAST_RUN_S), (900.0, 1800.0), (9000.0, LEAST_RUN_LIMIT_S)],
)
def test_a_turn_is_twice_as_long_as_what_the_last_one_lost(lost_s: float, least_s: float) -> None:
    assert least_run_s(replace(job(), lost_s=lost_s)) == least_s
