"""Jobs and pods that come, go, move and change at any moment, also in the middle of a trial or probation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from coda.contention import (
    ContentionConfig,
    EliminatorState,
    Hardware,
    PodSample,
    Protection,
    TrainingSample,
    Window,
    observe,
)
from tests.core.contention.contention_world import AMD, GB, INTEL, NO_MBA, PEAK

pytestmark = pytest.mark.heavy

WINDOWS = 700
SOCKETS = (frozenset({0}), frozenset({1}), frozenset({0, 1}))


@dataclass(slots=True)
class Churn:
    """A node where every window something may change. Throttled pods get 30 % of what they want."""

    hardware: Hardware
    rng: random.Random
    jobs: dict[str, TrainingSample] = field(default_factory=dict)  # `share`: what it would be alone
    pods: dict[str, PodSample] = field(default_factory=dict)
    now_s: float = 0.0
    names: int = 0

    def window(self, state: EliminatorState) -> Window:
        rng = self.rng
        self.now_s += rng.choice([1.0] * 30 + [0.0, -5.0, 5.5, 70.0])
        self._change_jobs()
        self._change_pods()
        held = {uid for throttle in state.throttles for uid in throttle.pods}
        pods = [
            replace(pod, bytes_per_s={at: rate * (0.3 if pod.uid in held else 1.0) for at, rate in used.items()})
            for pod in self.pods.values()
            for used in [pod.bytes_per_s]
        ]
        pressure = [sum(pod.bytes_per_s.get(socket, 0.0) for pod in pods) / PEAK for socket in (0, 1)]
        shares = {at: None if rng.random() < 0.01 else min(1.0, of) for at, of in enumerate(pressure)}
        jobs = [self._seen(job, pressure) for job in self.jobs.values()]
        return Window(at_s=self.now_s, share_by_socket=shares, pods=pods, jobs=jobs)

    def _seen(self, job: TrainingSample, pressure: Sequence[float]) -> TrainingSample:
        lost = 0.5 * max(min(1.0, max(0.0, 4 * pressure[socket] - 3)) for socket in job.sockets)
        share = (job.share or 0.0) * (1 - lost) * (1 + self.rng.gauss(0, 0.03))
        return replace(job, share=None if self.rng.random() < 0.02 else min(1.0, share))

    def _change_jobs(self) -> None:
        rng = self.rng
        if len(self.jobs) < 4 and rng.random() < 0.03:
            self.names += 1
            name, alone = f"a/{self.names}", rng.uniform(0.3, 0.95)
            self.jobs[name] = TrainingSample(job=name, sockets=rng.choice(SOCKETS), cores=4, share=alone)
        if self.jobs and rng.random() < 0.05:
            name = rng.choice(list(self.jobs))
            job = self.jobs.pop(name)
            if rng.random() < 0.6:
                self.jobs[name] = replace(job, sockets=rng.choice(SOCKETS), cores=rng.randint(1, 8))

    def _change_pods(self) -> None:
        rng = self.rng
        if len(self.pods) < 5 and rng.random() < 0.03:
            self.names += 1
            uid, used = f"pod-{self.names}", {rng.choice((0, 1)): rng.uniform(1, 120) * GB}
            self.pods[uid] = PodSample(uid=uid, bytes_per_s=used, cores=rng.choice((1, 8, 16)))
        if self.pods and rng.random() < 0.03:
            uid = rng.choice(list(self.pods))
            pod = self.pods.pop(uid)
            if rng.random() < 0.3:
                self.pods[uid] = replace(pod, protections=rng.choice((frozenset(), frozenset({Protection.OPTED_OUT}))))


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("hardware", [INTEL, AMD, NO_MBA], ids=["percent", "absolute", "cores"])
def test_whatever_comes_and_goes_only_pods_that_are_there_are_throttled(hardware: Hardware, seed: int) -> None:
    churn, state = Churn(hardware=hardware, rng=random.Random(seed)), EliminatorState()
    for _ in range(WINDOWS):
        window = churn.window(state)
        state, _actions = observe(state, window, hardware, ContentionConfig())
        allowed = {pod.uid for pod in window.pods if not pod.protections}
        assert {uid for throttle in state.throttles for uid in throttle.pods} <= allowed
        assert {one.job for one in state.references} == {job.job for job in window.jobs}
