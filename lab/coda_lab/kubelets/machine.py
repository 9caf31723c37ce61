"""One simulated machine, the pods on it, and the legal steps of a pod's life. No clock, no JSON, no network."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from coda_lab.kubelets.admission import Amounts, Ledger
from coda_lab.kubelets.behaviour import Behaviour
from coda_lab.kubelets.resize_values import NO_NEWS, USUAL, Manners, News, Sizes

PULL_RETRY_S: Final = 1.0  # from ErrImagePull to ImagePullBackOff; our choice (a kubelet's depends on the registry)
_ADDRESSES_PER_MACHINE: Final = 1024  # a /22 each: 8192 machines in 10.128.0.0/9


class Stage(Enum):
    """The stage of a pod on its machine."""

    ARRIVED = "bound to the node, not looked at yet"
    CREATING = "admitted, containers are being created"
    PULL_FAILED = "the image pull has just failed"
    PULL_BACKING_OFF = "the kubelet waits before it pulls again"
    RUNNING = "all containers run"
    ENDED = "all containers have ended"
    REFUSED = "the kubelet refused it; nothing was started"


NEXT: Final[Mapping[Stage, frozenset[Stage]]] = {
    Stage.ARRIVED: frozenset({Stage.CREATING, Stage.REFUSED}),
    Stage.CREATING: frozenset({Stage.RUNNING, Stage.PULL_FAILED}),
    Stage.PULL_FAILED: frozenset({Stage.PULL_BACKING_OFF}),
    Stage.PULL_BACKING_OFF: frozenset(),
    Stage.RUNNING: frozenset({Stage.ENDED}),
    Stage.ENDED: frozenset(),
    Stage.REFUSED: frozenset(),
}

OVER: Final = frozenset({Stage.ENDED, Stage.REFUSED})


class Timer(Protocol):
    """What `later` returns (asyncio's TimerHandle, or a test's)."""

    def cancel(self) -> None:
        """Never call back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container of a pod as its status needs it."""

    name: str
    image: str
    is_sidecar: bool = False  # an init container that keeps running


@dataclass(slots=True, eq=False)
class Machine:
    """A node's kubelet: what it has admitted, and whether it is silent (lost: it neither hears nor says anything)."""

    name: str
    index: int
    ledger: Ledger
    silent: bool = False
    boots: int = 0  # since the start of this process
    manners: Manners = USUAL  # with resizes
    pods: dict[str, SimPod] = field(default_factory=dict)  # by uid, in order of arrival
    waiting: dict[str, SimPod] = field(default_factory=dict)  # those whose resize is not done, by uid, longest first
    _addresses: int = 0

    def next_address(self) -> str:
        """A pod address that no other pod of this machine has. Pods that are over have given theirs back."""
        taken = {pod.address for pod in self.pods.values() if pod.stage not in OVER}
        while True:
            self._addresses = self._addresses % (_ADDRESSES_PER_MACHINE - 1) + 1
            number = self.index * _ADDRESSES_PER_MACHINE + self._addresses
            address = f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
            if address not in taken:
                return address


@dataclass(slots=True, kw_only=True, eq=False)
class SimPod:
    """A pod bound to one of our machines: its fixed properties, its progress, and what was reported of it."""

    uid: str
    namespace: str
    name: str
    machine: Machine
    containers: tuple[Container, ...]  # the first is the main one
    init_containers: tuple[Container, ...]
    request: Amounts
    behaviour: Behaviour
    generation: int  # of the spec: the last that its kubelet acted on
    asked_generation: int = 0  # the last that it has seen
    job: str | None = None  # the TrainingJob whose gang it belongs to
    rank: str | None = None
    world_size: str | None = None

    wanted: Sizes = field(default_factory=dict)  # sizes of its containers, by the spec
    allocated: Sizes = field(default_factory=dict)  # promised to it
    actual: Sizes = field(default_factory=dict)  # sizes that the containers run with
    is_guaranteed: bool = False
    was_resized: bool = False
    news: News = NO_NEWS  # of its last resize
    resize_due_s: float | None = None  # when the allocated sizes are applied
    restarts: dict[str, int] = field(default_factory=dict)  # by container, for a resize

    stage: Stage = Stage.ARRIVED
    reason: str | None = None  # of a refusal
    message: str | None = None
    address: str | None = None
    admitted_s: float = 0.0  # seconds since 1970, as all times here
    placed_s: float | None = None  # when it or its gang was placed, if its run counts from then
    started_s: float = 0.0
    ended_s: float = 0.0
    exit_code: int = 0
    end_reason: str | None = None  # None: as the exit code says

    told_s: float | None = None  # when it heard that it is to stop for another job
    grace_s: float | None = None  # someone deletes it and grants this grace period
    stop_s: float | None = None  # when its containers will have stopped because of that
    removal_due: bool = False  # nothing remains of it here: the API object may go
    removed: bool = False  # the API server knows that
    gone: bool = False  # the API object is gone

    revision: int = 0  # grows with each change worth reporting
    told: int = 0  # the revision last written to the API server
    timer: Timer | None = None
    over: asyncio.Event | None = None  # made by the first waiter

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def enter(self, stage: Stage) -> None:
        """Move to `stage`: one change worth reporting."""
        if stage not in NEXT[self.stage]:
            raise AssertionError(f"{self.key}: no step from {self.stage.name} to {stage.name}")
        self.stage = stage
        self.revision += 1

    def next_due_s(self) -> float | None:
        """The time of its next change without anybody's doing; None for never."""
        moments = [moment_s for moment_s in (self.stop_s, self.resize_due_s) if moment_s is not None]
        if self.stage is Stage.CREATING and not self.behaviour.never_starts:
            moments.append(self.admitted_s + self.behaviour.start_delay_s)
        elif self.stage is Stage.PULL_FAILED:
            moments.append(self.admitted_s + self.behaviour.start_delay_s + PULL_RETRY_S)
        elif self.stage is Stage.RUNNING and (end_s := self.own_end_s()) is not None:
            moments.append(end_s)
        return min(moments, default=None)

    def own_end_s(self) -> float | None:
        """When its started containers end by themselves: after their run, or because they heard of a stop."""
        began_s = self.started_s if self.placed_s is None else self.placed_s
        run_s, exit_s = self.behaviour.run_s, self.behaviour.exit_on_stop_s
        moments = [] if run_s is None else [began_s + run_s]
        if self.told_s is not None and exit_s is not None:
            moments.append(self.told_s + exit_s)
        return max(self.started_s, min(moments)) if moments else None

    async def wait_until_over(self) -> None:
        """Return once it has ended, was refused or is gone."""
        if self.gone or self.stage in OVER:
            return
        if self.over is None:
            self.over = asyncio.Event()
        await self.over.wait()

    def announce_end(self) -> None:
        """Wake the waiters for its end."""
        if self.over is not None:
            self.over.set()
