"""The shared GPUs of one node as a model: the agent's own coordinator on jobs whose speed depends on their neighbours.

A guaranteed job's mini-batches get longer by what its neighbours use, as in the simulator (`coda_sim.sharing`), each by
the share that it was ordered to keep to. The coordinator hears of these mini-batches and of nothing else. It may be
killed: then the jobs go on by their last orders, and give way to whoever comes, as the library does. A new coordinator
remembers nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from coda.sharing.config import FULL_SHARE, GIB, SharingConfig
from coda.sharing.pairing import GpuProfile
from coda_agent.sharing.coordinator import Coordinator
from coda_agent.sharing.messages import GpuClaim, Message
from coda_agent.sharing.units import SharedGpu
from coda_sim.sharing.pair_speed import unpaced_speed

CARD_BYTES: Final = 80 * GIB
PEAK_BYTES: Final = 18 * GIB  # four fill a card, as in `plans`
TOLD_AFTER_S: Final = 2.0
"""The kubelet tells a grant to the agent so late: a status, a question a second later, and a round."""

FIRST_KERNEL_S: Final = 2.0
"""From the start of a container to its first kernel: to import torch alone takes as long."""

LOOK_S: Final = 1.0
"""Without a coordinator a job looks this often whether somebody has come. Memory is seen before the first kernel."""

LONGEST_S: Final = 5.0
LONGEST_STEPS: Final = 8
"""A guaranteed job may be slower than its bound for so long, or for so many mini-batches: the law judges by five."""

MARGIN: Final = 0.01
DUTIES: Final = (0.2, 0.95)
STEPS_S: Final = (0.04, 0.8)
NOISE: Final = 0.005  # of a mini-batch
DEAF_SHARE: Final = 0.1  # of jobs that never give memory back
FLOOR: Final = SharingConfig().floor_share


@dataclass(frozen=True, slots=True, kw_only=True)
class OnGpus:
    """A pod on GPUs of the node: all of each, or a seat."""

    uid: str
    job: str
    gpus: tuple[int, ...]
    owns: bool
    controls: bool = True  # it has the library; a foreign pod has not


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowed:
    """A guaranteed job that was slower than its bound. `watched`: a coordinator was there."""

    node: str
    job: str
    factor: float
    bound: float
    seconds: float
    watched: bool

    def sentence(self) -> str:
        """For the report."""
        who = "beside a coordinator" if self.watched else "without a coordinator"
        return (
            f"guaranteed job {self.job} on {self.node} was {self.factor - 1:.1%} slower than alone for "
            f"{self.seconds:.0f} s {who}; its bound is {self.bound - 1:.1%}"
        )


@dataclass(slots=True, kw_only=True)
class _Running:
    on: OnGpus
    profile: GpuProfile
    since_s: float
    share: int
    held_until_s: float = math.inf
    count: int = 0
    left_s: float = 0.0
    over_s: float = 0.0
    was_watched: bool = True
    works: bool = False
    is_told: bool = False
    obeys: bool = True
    limit_by_gpu: dict[int, int] = field(default_factory=dict)  # bytes, as ordered
    device_by_gpu: dict[int, int] = field(default_factory=dict)  # bytes that it has: it obeys between mini-batches


@dataclass(slots=True)
class Totals:
    """What a node has seen: seconds of guaranteed jobs beside others, and by how much these were longer."""

    shared_s: float = 0.0
    lost_s: float = 0.0
    guest_share_s: float = 0.0  # seconds of guests beside an owner, times their share
    guest_s: float = 0.0
    longest_unwatched_s: float = 0.0
    owners: set[str] = field(default_factory=set)  # uids that were shared


class SharedNode:
    """One node. `see` says who is there, `tick` lets a second pass."""

    def __init__(self, name: str, gpus: int, *, seed: int) -> None:
        self.name = name
        self.totals = Totals()
        self.slowed: list[Slowed] = []
        self._gpus = gpus
        self._rng = random.Random(f"{seed} {name}")
        self._seed = seed
        self._running: dict[str, _Running] = {}
        self._coordinator: Coordinator | None = Coordinator(SharingConfig())
        self._died_at_s = self._back_at_s = 0.0
        self._ticked_s: float | None = None

    @property
    def is_shared(self) -> bool:
        """True if a guaranteed job has a neighbour."""
        return any(self._neighbours(one) for one in self._running.values() if one.on.owns)

    def see(self, pods: Iterable[OnGpus], now_s: float) -> None:
        """Take note of who is there now."""
        by_uid = {pod.uid: pod for pod in pods}
        for uid in self._running.keys() - by_uid.keys():
            if self._coordinator is not None:
                self._coordinator.leave(uid)
            del self._running[uid]
        for uid in by_uid.keys() - self._running.keys():
            pod = by_uid[uid]
            share = FULL_SHARE if pod.owns else FLOOR
            obeys = random.Random(f"deaf {self._seed} {pod.job}").random() >= DEAF_SHARE
            self._running[uid] = _Running(
                on=pod, profile=self._profile_of(pod.job), since_s=now_s, share=share, obeys=obeys
            )
            self._join(uid)

    def crash(self, now_s: float, lasts_s: float) -> None:
        """The agent is killed; another one begins after `lasts_s`."""
        self._coordinator, self._died_at_s, self._back_at_s = None, now_s, now_s + lasts_s

    def tick(self, now_s: float) -> None:
        """About a second passes, and ends at `now_s`."""
        passed_s = 1.0 if self._ticked_s is None else max(0.0, now_s - self._ticked_s)
        self._ticked_s = now_s
        if self._coordinator is None and now_s >= self._back_at_s:
            self._coordinator = Coordinator(SharingConfig())
            for uid in self._running:
                self._join(uid)
        for one in self._running.values():
            one.works = now_s - one.since_s >= FIRST_KERNEL_S
            if now_s >= one.held_until_s:
                one.share, one.held_until_s = min(one.share, FLOOR), math.inf
            if self._coordinator is None and not one.on.owns and self._has_new_neighbour(one, now_s):
                one.share = min(one.share, FLOOR)
        for uid, one in self._running.items():
            if not one.works:
                continue
            slowdown = self._slowdown(one, self._neighbours(one)) if one.on.owns else FULL_SHARE / max(1, one.share)
            if one.on.owns:
                self._judge(one, slowdown, passed_s)
            self._step(uid, one, slowdown, now_s, passed_s)
        if self._coordinator is not None:
            self._obey(self._coordinator, now_s)

    def row_of(self, gpu: int, now_s: float, *, alone_s: float) -> dict[str, object]:
        """What an agent tells of a GPU in the NodeProfile. `alone_s`: after so long it knows how busy its owner is."""
        owners = [one for one in self._running.values() if one.on.owns and gpu in one.on.gpus]
        row: dict[str, object] = {
            "uuid": self._uuid(gpu),
            "health": "Healthy",
            "index": gpu,
            "memoryBytes": CARD_BYTES,
            "podUIDs": sorted(one.on.uid for one in owners),
        }
        for one in owners:
            one.is_told = one.is_told or (now_s - one.since_s >= alone_s and not self._neighbours(one))
            if one.is_told:
                row |= {"utilization": round(one.profile.duty, 1), "peakMemoryBytes": one.profile.peak_bytes}
        return row

    def _profile_of(self, job: str) -> GpuProfile:
        rng = random.Random(f"{self._seed} {job}")
        step_s = math.exp(rng.uniform(math.log(STEPS_S[0]), math.log(STEPS_S[1])))
        return GpuProfile(key=job, duty=rng.uniform(*DUTIES), step_s=step_s, peak_bytes=PEAK_BYTES, floor_bytes=GIB)

    def _join(self, uid: str) -> None:
        if self._coordinator is not None and self._running[uid].on.controls:
            self._coordinator.join(uid, uid)

    def _neighbours(self, one: _Running) -> list[_Running]:
        guests = [other for other in self._running.values() if not other.on.owns and other.works]
        return [other for other in guests if set(other.on.gpus) & set(one.on.gpus)]

    def _has_new_neighbour(self, one: _Running, now_s: float) -> bool:
        first, last = self._died_at_s - FIRST_KERNEL_S, now_s - FIRST_KERNEL_S - LOOK_S
        others = [other for other in self._running.values() if first <= other.since_s <= last]
        return any(other is not one and set(other.on.gpus) & set(one.on.gpus) for other in others)

    def _slowdown(
        self, one: _Running, others: list[_Running], share_among: Callable[[int], int] | None = None
    ) -> float:
        """By the GPU on which its neighbours use most; `share_among`: the share of each, if so many were on a GPU."""
        worst = 1.0
        for gpu in one.on.gpus:
            there = [other for other in others if gpu in other.on.gpus]
            shares = [other.share if share_among is None else share_among(len(there)) for other in there]
            paced = [
                replace(other.profile, duty=other.profile.duty * share / FULL_SHARE)
                for other, share in zip(there, shares, strict=True)
            ]
            worst = max(worst, 1 / unpaced_speed(one.profile, paced))
        return worst

    def _judge(self, one: _Running, slowdown: float, passed_s: float) -> None:
        others = self._neighbours(one)
        if not others:
            one.over_s = 0.0
            return
        config, totals = SharingConfig(), self.totals
        totals.owners.add(one.on.uid)
        totals.shared_s += passed_s
        totals.lost_s += passed_s * (1.0 - 1.0 / slowdown)
        totals.guest_s += passed_s * len(others)
        totals.guest_share_s += passed_s * sum(other.share for other in others) / FULL_SHARE
        watched = self._coordinator is not None  # else nobody divides the floor among them
        at_floor = self._slowdown(one, others, lambda count: config.floor_share // (count if watched else 1))
        noise = config.noise_bounds * NOISE
        bound = max(1 + config.tolerance + noise, at_floor) + MARGIN
        before_s = one.over_s if watched == one.was_watched else 0.0
        one.over_s = before_s + passed_s if slowdown > bound else 0.0
        one.was_watched = watched
        if not watched:
            totals.longest_unwatched_s = max(totals.longest_unwatched_s, one.over_s)
        if before_s <= max(LONGEST_S, LONGEST_STEPS * one.profile.step_s) < one.over_s:
            found = Slowed(
                node=self.name, job=one.on.job, factor=slowdown, bound=bound, seconds=one.over_s, watched=watched
            )
            self.slowed.append(found)

    def _step(self, uid: str, one: _Running, slowdown: float, now_s: float, passed_s: float) -> None:
        steps: list[float] = []
        one.left_s += passed_s
        while True:
            step_s = one.profile.step_s * slowdown * max(0.5, 1 + self._rng.gauss(0, NOISE))
            if step_s > one.left_s:
                break
            one.left_s -= step_s
            steps.append(step_s)
        one.count += len(steps)
        if steps and one.obeys:
            one.device_by_gpu = {gpu: min(PEAK_BYTES, one.limit_by_gpu.get(gpu, PEAK_BYTES)) for gpu in one.on.gpus}
        if self._coordinator is None or not one.on.controls:
            return
        claims = tuple(
            GpuClaim(
                gpu=self._uuid(gpu),
                device_bytes=one.device_by_gpu.get(gpu, PEAK_BYTES),
                host_bytes=PEAK_BYTES - one.device_by_gpu.get(gpu, PEAK_BYTES),
                reserve_bytes=PEAK_BYTES,
                floor_bytes=GIB,
                refusals=0,
            )
            for gpu in one.on.gpus
        )
        for start in range(0, max(1, len(steps)), 10):
            part = tuple(steps[start : start + 10])
            self._coordinator.take(uid, Message(kind="steps", steps=part, count=one.count, gpus=claims), now_s)

    def _obey(self, coordinator: Coordinator, now_s: float) -> None:
        for uid, orders in coordinator.round(self._granted(now_s), now_s).items():
            one = self._running.get(str(uid))
            if one is None or one.on.owns or not orders:
                continue
            one.share = min(order.share for order in orders)
            one.limit_by_gpu = {
                gpu: order.device_bytes
                for gpu in one.on.gpus
                for order in orders
                if order.gpu == self._uuid(gpu) and order.device_bytes is not None
            }
            holds = [order.hold_s for order in orders if order.hold_s and not order.alone]
            one.held_until_s = now_s + min(holds) if holds else math.inf

    def _granted(self, now_s: float) -> list[SharedGpu]:
        known = [one for one in self._running.values() if now_s - one.since_s >= TOLD_AFTER_S]
        found = []
        for gpu in range(self._gpus):
            here = [one for one in known if gpu in one.on.gpus]
            owner = next((one.on.uid for one in here if one.on.owns), None)
            guests = tuple(sorted(one.on.uid for one in here if not one.on.owns))
            if here:
                found.append(
                    SharedGpu(
                        uuid=self._uuid(gpu),
                        memory_bytes=CARD_BYTES,
                        guaranteed=owner,
                        opportunistic=guests,
                        seen_bytes={},
                    )
                )
        return found

    def _uuid(self, gpu: int) -> str:
        return f"GPU-{self.name}-{gpu}"
