"""One round: reports of the processes and the grants in, orders out. No socket here, and no clock."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from coda.sharing.config import GIB, SharingConfig
from coda.sharing.coordinator import SharingOrder, UnitReport, UnitState, coordinate
from coda.sharing.memory_limits import MemoryControl, MemoryReport, MemoryUse
from coda.sharing.memory_waits import Card, MemoryRefusal, Waits, WaitVerdict
from coda.sharing.pace_control import PaceReport, is_heard, slowdown
from coda_agent.sharing.members import PEAK_S, Process, Seen, use_of
from coda_agent.sharing.messages import Message
from coda_agent.sharing.units import SharedGpu, Unit, units_of

CHUNK_S, CHUNK_SHARE = 0.005, 0.05
"""A neighbour's kernels may delay the guaranteed job by 5 ms, and by 5 % of its mini-batch. Our choice."""

LEAST_CHUNK_S = 0.0005

HURRIED_HOLD_S = 3.0
"""Without us a job that is not paced beside a guaranteed one goes on like this for so long. Our choice: as long as an
agent may take for a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOrder:
    """What one process may have of one GPU. `hold_s`: 0 for ever; `chunk_s`: its longest turn between two pauses."""

    gpu: str
    share: int
    device_bytes: int | None
    alone: bool
    drain: bool
    hold_s: float
    chunk_s: float


@dataclass(slots=True)
class _Peer:
    """`refusal`: what the library in it was refused, and waits for. `refused_at_s`: when it first said so.
    `is_looked_at`: a round has seen the refusal, so that the next one measures what is true since then."""

    pod_uid: str
    process: Process
    refusal: Message | None = None
    refused_at_s: float = 0.0
    is_looked_at: bool = False


class Coordinator:
    """Remembers the processes and the units from round to round."""

    def __init__(self, config: SharingConfig, *, hold_s: float = 60.0, context_bytes: int = GIB) -> None:
        """`hold_s`: how long an opportunistic job keeps its share without us.

        `context_bytes`: what each process needs on a card beside its tensors. Our choice: 1 GiB."""
        self._config = config
        self._hold_s = hold_s
        self._context_bytes = context_bytes
        self._peers: dict[Hashable, _Peer] = {}
        self._states: dict[str, UnitState] = {}
        self._most_seen: dict[tuple[str, str], int] = {}  # bytes by GPU and uid, of opportunistic pods
        self._gpus: dict[str, float] = {}  # of this node, by UUID: when each was last there
        self._waits = Waits()
        self._verdicts: dict[str, WaitVerdict] = {}  # of this round, by GPU
        self._round_s: float | None = None
        self.problems: tuple[str, ...] = ()
        self.to_move: Mapping[str, tuple[str, ...]] = {}  # uids by GPU: see `MemoryState.to_move`
        self.awaited: frozenset[str] = frozenset()  # GPUs whose guaranteed job waits until some of these are stopped
        self.heard: frozenset[str] = frozenset()  # GPUs whose guaranteed job ended a mini-batch lately
        self.answers: Mapping[Hashable, bool] = {}  # by peer that was refused memory: whether to wait for it

    def join(self, peer: Hashable, pod_uid: str) -> None:
        """A process of a pod has connected."""
        self._peers[peer] = _Peer(pod_uid, Process())

    def leave(self, peer: Hashable) -> None:
        """Its connection has ended."""
        self._peers.pop(peer, None)

    def take(self, peer: Hashable, message: Message, now_s: float) -> None:
        """Remember what a process says of itself."""
        known = self._peers.get(peer)
        if known is None:
            return
        if message.kind == "refused":
            known.refusal, known.refused_at_s = message, now_s if known.refusal is None else known.refused_at_s
        else:
            known.process.take(message, now_s)

    def round(self, gpus: Sequence[SharedGpu], now_s: float) -> Mapping[Hashable, tuple[GpuOrder, ...]]:
        """Return what every process may have now, by peer. Units without a pod are forgotten.

        Only reports since the last round count, and only of GPUs that the kubelet gave to the pod."""
        span_s = 0.0 if self._round_s is None else max(0.0, now_s - self._round_s)
        self._round_s = now_s
        self._forget(gpus, now_s)
        self._note_seen(gpus)
        before, self._states = self._states, {}
        orders: dict[Hashable, list[GpuOrder]] = {}
        problems: list[str] = []
        to_move: dict[str, tuple[str, ...]] = {}
        awaited: set[str] = set()
        heard: set[str] = set()
        reports: list[UnitReport] = []
        self._judge(gpus, now_s, span_s)
        for unit in units_of(gpus):
            report = self._report_of(unit, span_s)
            reports.append(report)
            state, decided = coordinate(before.get(unit.key, UnitState()), report, now_s, self._config)
            self._states[unit.key] = state
            if is_heard(state.pace, now_s, self._config):
                heard.update(gpu.uuid for gpu in unit.gpus)
            problems += _problems_of(report)
            for gpu, memory in state.memory_by_gpu.items():
                if uids := memory.to_move(now_s, self._config):
                    to_move[gpu] = uids
                if memory.ending:
                    awaited.add(gpu)
            for order in decided:
                for peer, one in self._addressed(order, unit, state, self._keeps_all(order, report)):
                    orders.setdefault(peer, []).append(one)
        for peer in self._peers.values():
            peer.process.steps.clear()
            peer.process.counted = peer.process.count
        self.problems, self.to_move = tuple(problems), to_move
        self.awaited, self.heard, self.answers = frozenset(awaited), frozenset(heard), self._answers(reports)
        return {peer: tuple(found) for peer, found in orders.items()}

    def share_of(self, key: str) -> tuple[str, int, float | None, int]:
        """Return a unit's phase, share, slowdown of its guaranteed job, and how often it backed off; for reports."""
        pace = self._states[key].pace
        return pace.phase.value, pace.share if pace.is_shared else 1000, slowdown(pace), pace.backoffs

    def _report_of(self, unit: Unit, span_s: float) -> UnitReport:
        steps = self._steps_of(unit.guaranteed)
        pace = PaceReport(guaranteed=unit.guaranteed, opportunistic=unit.opportunistic, steps=steps)
        return UnitReport(pace=pace, memory_by_gpu={gpu.uuid: self._memory_of(gpu, span_s) for gpu in unit.gpus})

    def _memory_of(self, gpu: SharedGpu, span_s: float) -> MemoryReport:
        first = gpu.guaranteed
        return MemoryReport(
            total_bytes=gpu.memory_bytes,
            guaranteed=None if first is None else self._use_of(first, gpu, span_s),
            opportunistic=tuple(self._use_of(uid, gpu, span_s) for uid in gpu.opportunistic),
        )

    def _judge(self, gpus: Sequence[SharedGpu], now_s: float, span_s: float) -> None:
        self._waits.forget(now_s)
        self._verdicts = {}
        for gpu in gpus:
            if gpu.guaranteed is not None:
                card = Card(gpu.uuid, gpu.guaranteed, gpu.memory_bytes, gpu.free_bytes)
                self._verdicts[gpu.uuid] = self._waits.judge(card, self._refused(gpu), now_s, span_s)
        for peer in self._peers.values():
            peer.is_looked_at = peer.refusal is not None

    def _refused(self, gpu: SharedGpu) -> Mapping[Hashable, MemoryRefusal]:
        """What processes of the guaranteed job wait for on this GPU, by peer. No other job is waited for."""
        return {
            peer: MemoryRefusal(
                refused_bytes=known.refusal.refused_bytes,
                has_bytes=self._has_bytes(gpu, known.refused_at_s if known.is_looked_at else -math.inf),
                is_first=not known.is_looked_at,
            )
            for peer, known in self._peers.items()
            if known.refusal is not None
            and known.pod_uid == gpu.guaranteed
            and ("" in (gpu.pci_bus_id, known.refusal.pci_bus_id) or known.refusal.pci_bus_id == gpu.pci_bus_id)
        }

    def _has_bytes(self, gpu: SharedGpu, since_s: float) -> int:
        """What the guaranteed job has of a GPU; where the driver does not tell, by its own words.

        A process that waits says nothing meanwhile, and has just given its cache back: of one that is silent
        `since_s` only what it needs counts."""
        if gpu.seen_bytes:
            return gpu.seen_bytes.get(gpu.guaranteed or "", 0)
        total = 0
        for process in [peer.process for peer in self._peers.values() if peer.pod_uid == gpu.guaranteed]:
            claim = process.claims.get(gpu.uuid)
            if claim is not None and claim.device_bytes:
                is_true = process.claimed_at_s > since_s
                total += self._context_bytes
                total += claim.device_bytes if is_true else min(claim.device_bytes, process.floor_bytes(gpu.uuid))
        return total

    def _answers(self, reports: Sequence[UnitReport]) -> Mapping[Hashable, bool]:
        """To wait is told those for whom there may be more: somebody else has memory there."""
        shared = {
            gpu
            for report in reports
            for gpu, memory in report.memory_by_gpu.items()
            if any(use.holds_memory for use in memory.opportunistic)
        }
        told: dict[Hashable, set[bool | None]] = {
            peer: set() for peer, known in self._peers.items() if known.refusal is not None
        }
        for gpu, verdict in self._verdicts.items():
            for peer, waits in verdict.told.items():
                told[peer].add(waits if gpu in shared else False)
        return {peer: True in words for peer, words in told.items() if True in words or None not in words}

    def _forget(self, gpus: Sequence[SharedGpu], now_s: float) -> None:
        """A process may name what it likes. A GPU that is away for a moment keeps what is known of it."""
        there = {uuid: at_s for uuid, at_s in self._gpus.items() if now_s - at_s <= PEAK_S}
        self._gpus = there | {gpu.uuid: now_s for gpu in gpus}
        for peer in self._peers.values():
            peer.process.forget(self._gpus.keys(), now_s)

    def _note_seen(self, gpus: Sequence[SharedGpu]) -> None:
        """Where the driver tells of nobody, it does not tell."""
        before, self._most_seen = self._most_seen, {}
        for gpu in gpus:
            for uid in gpu.opportunistic:
                if gpu.seen_bytes or (gpu.uuid, uid) in before:
                    seen_bytes = gpu.seen_bytes.get(uid, 0)
                    self._most_seen[gpu.uuid, uid] = max(seen_bytes, before.get((gpu.uuid, uid), 0))

    def _use_of(self, uid: str, gpu: SharedGpu, span_s: float) -> MemoryUse:
        use = use_of(
            uid,
            gpu.uuid,
            [peer.process for peer in self._peers.values() if peer.pod_uid == uid],
            context_bytes=self._context_bytes,
            seen=Seen(now_bytes=gpu.seen_bytes.get(uid, 0), most_bytes=self._most_seen.get((gpu.uuid, uid))),
            span_s=span_s,
        )
        waits_bytes = self._verdicts[gpu.uuid].waited_bytes if uid == gpu.guaranteed else 0
        declared_bytes, is_seen = gpu.declared_bytes.get(uid, 0), (gpu.uuid, uid) in self._most_seen
        return replace(use, waits_bytes=waits_bytes, declared_bytes=declared_bytes, is_seen=is_seen)

    def _steps_of(self, uid: str | None) -> tuple[float, ...]:
        """The ranks of a job step together: the one that said most is its clock."""
        said = [peer.process.steps for peer in self._peers.values() if peer.pod_uid == uid]
        return max((tuple(steps) for steps in said), key=len, default=())

    def _addressed(
        self, order: SharingOrder, unit: Unit, state: UnitState, keeps_all: bool
    ) -> list[tuple[Hashable, GpuOrder]]:
        """An order for a pod, divided among its processes on that GPU. `keeps_all`: its limit would end it.

        One that has not said yet what it holds keeps what an earlier agent ordered."""
        peers = [peer for peer, known in self._peers.items() if known.pod_uid == order.uid]
        limits: Mapping[Hashable, int] = {} if keeps_all else self._limits_of(peers, order)
        base_s = state.pace.base_s
        one = GpuOrder(
            gpu=order.gpu,
            share=order.share,
            device_bytes=None,
            alone=order.alone,
            drain=order.drain,
            hold_s=0.0 if order.uid == unit.guaranteed else self._hold_of(order),
            chunk_s=CHUNK_S if base_s is None else min(CHUNK_S, max(LEAST_CHUNK_S, CHUNK_SHARE * base_s)),
        )
        if order.uid == unit.guaranteed:
            one, limits = replace(one, share=1000), {}  # whatever happens, nothing ever limits it
        spoken = [(peer, self._peers[peer].process) for peer in peers if self._peers[peer].process.has_spoken]
        shares = self._shares_of(dict(spoken), one)
        return [  # any limit might end a newcomer: it is only paced
            (peer, replace(one, share=shares[peer], device_bytes=limits.get(peer) if process.is_known else None))
            for peer, process in spoken
        ]

    def _shares_of(self, processes: Mapping[Hashable, Process], order: GpuOrder) -> Mapping[Hashable, int]:
        """The share of each process of a pod: an equal part for those that work on the GPU. One that is idle gets as
        much as if it worked, so that it may begin at any time. To stand still, and to run free, is for all."""
        now_s = self._round_s or 0.0
        if not 0 < order.share < 1000:
            for process in processes.values():
                process.worked_at_s = now_s  # as far as anybody can know
            return dict.fromkeys(processes, order.share)
        working = {peer for peer, process in processes.items() if process.shares(order.gpu, now_s)}
        return {peer: max(1, order.share // len(working | {peer})) for peer in processes}

    def _limits_of(self, peers: Sequence[Hashable], order: SharingOrder) -> Mapping[Hashable, int]:
        """The limit of each process of a pod: its own peak and an equal part of the rest, or equal parts if the peaks
        do not fit. Empty without a limit."""
        if order.device_bytes is None:
            return {}
        peaks = self._peaks_of(order)
        count = len(peaks) or len(peers)
        rest = order.device_bytes - sum(peaks.values())
        if rest < 0:
            return dict.fromkeys(peers, order.device_bytes // count)
        return {peer: peaks.get(peer, 0) + rest // count for peer in peers}

    def _peaks_of(self, order: SharingOrder) -> Mapping[Hashable, int]:
        """What each process of the pod says that it had of the GPU in the last minute; others say nothing of it."""
        return {
            peer: known.process.peak_bytes(order.gpu)
            for peer, known in self._peers.items()
            if known.pod_uid == order.uid and order.gpu in known.process.claims
        }

    def _keeps_all(self, order: SharingOrder, report: UnitReport) -> bool:
        """True for a job without host memory whose peak does not fit: a limit would not move it, but make it fail.

        It stands still with what it has, until it is moved or there is room. If it only says that it has so much, it
        runs on: an agent may have looked before it grew."""
        uses = report.memory_by_gpu[order.gpu].opportunistic
        use = next((use for use in uses if use.uid == order.uid), None)
        if use is None or order.device_bytes is None or use.control is MemoryControl.FULL:
            return False
        return order.device_bytes < max(use.peak_bytes, sum(self._peaks_of(order).values()))

    def _hold_of(self, order: SharingOrder) -> float:
        return min(self._hold_s, HURRIED_HOLD_S) if order.hurried else self._hold_s


def _problems_of(report: UnitReport) -> list[str]:
    deaf = [
        f"the pod with uid {use.uid} shares {gpu} and cannot be controlled: it is not connected, or says so"
        for gpu, memory in report.memory_by_gpu.items()
        for use in memory.opportunistic
        if use.control is MemoryControl.NONE and memory.guaranteed is not None
    ]
    return deaf + [
        f"the pod with uid {memory.guaranteed.uid} waits for memory of {gpu}, which it has whole: "
        "those with a seat there give it back, or are stopped"
        for gpu, memory in report.memory_by_gpu.items()
        if memory.guaranteed is not None and memory.guaranteed.waits_bytes and memory.opportunistic
    ]
