"""A node in a closed loop with the eliminator: pods that want bandwidth, jobs that suffer from it, throttles that act.

Bandwidth limits do nothing above a knee, as on real hardware; what is wanted beyond the peak is shared out in
proportion; utilisation falls linearly from three quarters of the peak on (an assumption, as in the simulator).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from coda.contention import (
    Action,
    ContentionConfig,
    EliminatorState,
    Hardware,
    Means,
    PodSample,
    Protection,
    TrainingSample,
    Window,
    observe,
)
from coda.contention.throttles import absolute_limits, percent_limits

GB = 1e9
PEAK = 100 * GB
PERCENT = percent_limits(10, 10)
INTEL = Hardware(peak_bytes_per_s={0: PEAK, 1: PEAK}, limits={0: PERCENT, 1: PERCENT})
ARM = Hardware(peak_bytes_per_s={0: PEAK, 1: PEAK}, limits=dict.fromkeys((0, 1), percent_limits(1, 1)))
AMD_UNIT = GB / 8
AMD_LIMITS = absolute_limits(2048, PEAK, AMD_UNIT)
AMD = Hardware(peak_bytes_per_s={0: PEAK, 1: PEAK}, limits={0: AMD_LIMITS, 1: AMD_LIMITS})
NO_MBA = Hardware(peak_bytes_per_s={0: PEAK, 1: PEAK})


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A CPU pod: what it wants from one socket with all its cores."""

    uid: str
    gb_per_s: float
    socket: int = 0
    cores: float = 16
    knee: float = 0.6  # bandwidth limits above this part of unlimited do nothing
    until_s: float = float("inf")
    pause_s: float = 0.0  # in every 30 s
    protections: frozenset[Protection] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A training job: what it uses, and the part of its utilisation lost at a saturated socket."""

    job: str
    gb_per_s: float = 10
    loss: float = 0.5
    socket: int = 0
    busy: float = 0.8
    until_s: float = float("inf")


@dataclass(slots=True)
class Node:
    """The closed loop; time moves in windows of 1 s. Loads come at `onset_s`."""

    loads: tuple[Load, ...]
    victims: tuple[Victim, ...] = (Victim(job="a/train"),)
    hardware: Hardware = INTEL
    config: ContentionConfig = field(default_factory=ContentionConfig)
    unit_bytes_per_s: float = 0.0  # of absolute limits; 0: limits are parts of the unlimited value
    noise: float = 0.0
    seed: int = 0
    onset_s: float = 30
    blind: Callable[[float], bool] = lambda _now_s: False
    state: EliminatorState = field(default_factory=EliminatorState)
    now_s: float = 0.0
    actions: list[tuple[float, Action]] = field(default_factory=list)
    busy_by_job: dict[str, list[float]] = field(default_factory=dict)
    cores: dict[str, float] = field(default_factory=dict)
    limits: dict[int, tuple[tuple[str, ...], float]] = field(default_factory=dict)  # socket -> group, limit

    def run(self, seconds: float) -> Node:
        for _ in range(int(seconds)):
            self.now_s += 1
            window = self._window()
            self.state, actions = observe(self.state, window, self.hardware, self.config)
            for action in actions:
                self._carry_out(action)
        return self

    def _carry_out(self, action: Action) -> None:
        self.actions.append((self.now_s, action))
        if action.means is Means.CORES:
            self.cores[action.pods[0]] = action.value
        else:
            self.limits[action.socket] = ((), 0.0) if action.ends else (action.pods, action.value)

    def _wanted(self, load: Load) -> float:
        paused = self.now_s % 30 < load.pause_s
        if paused or not self.onset_s <= self.now_s < load.until_s:
            return 0.0
        wanted = load.gb_per_s * GB * self.cores.get(load.uid, load.cores) / load.cores
        group, limit = self.limits.get(load.socket, ((), 0.0))
        if load.uid in group and self.unit_bytes_per_s:
            return min(wanted, limit * self.unit_bytes_per_s)
        if load.uid in group:
            wanted *= min(1.0, limit / (load.knee * self.hardware.limits[load.socket][0]))
        return wanted

    def _window(self) -> Window:
        rng = random.Random(self.seed * 1_000_003 + int(self.now_s))
        victims = [victim for victim in self.victims if self.now_s < victim.until_s]
        pressure = dict.fromkeys(self.hardware.peak_bytes_per_s, 0.0)
        wanted = [(load.socket, self._wanted(load)) for load in self.loads]
        for socket, rate in (*wanted, *((victim.socket, victim.gb_per_s * GB) for victim in victims)):
            pressure[socket] += rate / self.hardware.peak_bytes_per_s[socket]
        pods = tuple(self._pod(load, max(1.0, pressure[load.socket])) for load in self.loads)
        jobs = tuple(self._job(victim, pressure[victim.socket], rng) for victim in victims)
        shares = {socket: None if self.blind(self.now_s) else min(1.0, share) for socket, share in pressure.items()}
        return Window(at_s=self.now_s, share_by_socket=shares, pods=pods, jobs=jobs)

    def _pod(self, load: Load, squeeze: float) -> PodSample:
        return PodSample(
            uid=load.uid,
            bytes_per_s={load.socket: self._wanted(load) / squeeze},
            cores=self.cores.get(load.uid, load.cores),
            protections=load.protections,
        )

    def _job(self, victim: Victim, pressure: float, rng: random.Random) -> TrainingSample:
        lost = victim.loss * min(1.0, max(0.0, (pressure - 0.75) / 0.25))
        share = victim.busy * (1 - lost) * (1 + rng.gauss(0, self.noise))
        self.busy_by_job.setdefault(victim.job, []).append(share)
        return TrainingSample(
            job=victim.job, sockets=frozenset({victim.socket}), cores=4, share=min(1.0, max(0.0, share))
        )

    def least_pressure(self, socket: int) -> float:
        """What is wanted of the socket, over its peak, with every pod throttled as far as the hardware allows."""
        ladder = self.hardware.limits.get(socket)
        everybody = tuple(load.uid for load in self.loads)
        limits = {socket: (everybody, float(ladder[-1]))} if ladder else {}
        floored = replace(self, limits=limits, cores={} if ladder else dict.fromkeys(everybody, 1.0))
        wanted = sum(floored._wanted(load) for load in self.loads if load.socket == socket)
        used = sum(victim.gb_per_s * GB for victim in self.victims if victim.socket == socket)
        return (wanted + used) / self.hardware.peak_bytes_per_s[socket]

    @property
    def is_untouched(self) -> bool:
        """Whether every pod has again what it had at first."""
        first = {load.uid: load.cores for load in self.loads}
        whole = all(first[uid] == cores for uid, cores in self.cores.items())
        return whole and not any(group for group, _limit in self.limits.values()) and not self.state.throttles

    def episodes(self, since_s: float = 0.0) -> list[tuple[float, float, Action]]:
        """Actions that follow one another within 20 s, as one: first and last time, and last action."""
        found: list[tuple[float, float, Action]] = []
        for at_s, action in self.actions:
            if found and at_s - found[-1][1] <= 20:
                found[-1] = (found[-1][0], at_s, action)
            elif at_s >= since_s:
                found.append((at_s, at_s, action))
        return found

    def times(self, since_s: float = 0.0) -> list[float]:
        return [at_s for at_s, _action in self.actions if at_s >= since_s]
