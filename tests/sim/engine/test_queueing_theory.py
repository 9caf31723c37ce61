"""One and several servers with random arrivals and random service: the waits that theory gives.

Services in ten batches; their means are nearly independent, so ten of them give the interval (Student, 9 degrees).
"""

import math
import random

import pytest

from coda_sim.results.metrics import wait_s
from coda_sim.results.statistics import mean
from coda_sim.traces import Row
from tests.sim.simulating import simulated
from tests.sim.worlds import row

pytestmark = pytest.mark.heavy

BATCHES, PER_BATCH, WARMUP = 10, 500, 200
STUDENT_9 = 2.262
SERVICE_S = 1000.0


def poisson_rows(*, servers: int, load: float, seed: int) -> list[Row]:
    draw, now_s, rows = random.Random(seed), 0.0, []
    for number in range(WARMUP + BATCHES * PER_BATCH):
        now_s += draw.expovariate(load * servers / SERVICE_S)
        duration_s = draw.expovariate(1 / SERVICE_S)
        rows.append(row(f"j{number:06}", gpus=1, cpus=1, submit_s=now_s, duration_s=duration_s))
    return rows


def erlang_c(servers: int, load: float) -> float:
    """The share of jobs that wait."""
    offered = servers * load
    terms = [offered**number / math.factorial(number) for number in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    return last / (sum(terms) + last)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (1, 0.7), (4, 0.8)])
def test_waits_are_those_of_theory(servers: int, load: float) -> None:
    log = simulated(poisson_rows(servers=servers, load=load, seed=11), f"1x{servers}x{servers}")
    waits = [wait for entry in log.entries if (wait := wait_s(entry)) is not None][WARMUP:]
    assert len(waits) == BATCHES * PER_BATCH
    batches = [mean(waits[start : start + PER_BATCH]) or 0.0 for start in range(0, len(waits), PER_BATCH)]
    middle = sum(batches) / BATCHES
    spread = math.sqrt(sum((batch - middle) ** 2 for batch in batches) / (BATCHES - 1))
    expected_s = erlang_c(servers, load) * SERVICE_S / (servers * (1 - load))
    assert abs(middle - expected_s) <= STUDENT_9 * spread / math.sqrt(BATCHES)
    assert spread / math.sqrt(BATCHES) < 0.2 * expected_s, "the interval says something"
