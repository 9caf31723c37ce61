"""How a grant of cores is carried out on the pods of a running gang, and how it ends.

Level-triggered: it reads only what the pods and their kubelets say, so the caller may die between any two requests.
By the deadline every rank has its growth, or no rank keeps it. Growth that is not allocated is withdrawn, because a
kubelet could apply it later, in the middle of a measurement; allocated growth is given back. A shrink that one node
refuses is taken back as well.
Source: KEP-1287, sections on resize status and retries; the deadline and giving back are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from coda.model.job import TAKEN_BACK, WishAnswer

LATE: Final = "DeadlineExceeded"
"""The deadline passed, and a node said why it does not give the growth."""

NO_ANSWER: Final = "NoAnswer"
"""The deadline passed, and no node said why: its kubelet, the API server or the operator was away."""

GIVING_BACK_S: Final = 60.0
"""Seconds after which ranks that cannot be made equal again stay as they are. Our choice: 20 times a resize."""


class ResizeState(Enum):
    """The state of a granted change of cores; the last two end it."""

    RESIZING = "Resizing"
    DEFERRED = "Deferred"  # a kubelet has no free cores now; it may have some before the deadline
    REVERTING = "Reverting"  # it is not possible: what was changed is taken back
    DONE = "Done"  # every rank runs with the granted cores
    REFUSED = "Refused"  # it was not possible; no part of it can be applied later


ENDED = frozenset({ResizeState.DONE, ResizeState.REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """The state of the last granted wish of an attempt."""

    attempt: int
    sequence: int  # of the wish
    state: ResizeState
    wanted: int  # granted cores per rank
    cores: int  # cores per rank that every rank has now
    since_s: float  # since when it is in this state
    reason: str = ""  # one word: why not, or what it waits for
    message: str = ""

    @property
    def has_ended(self) -> bool:
        """True if no part of it is under way any more."""
        return self.state in ENDED


class Obstacle(Enum):
    """Why the cores of a pod are never changed; the value is the reason in the status."""

    BEST_EFFORT = "BestEffort"  # its main container asks for no cores: there is nothing to set
    WOULD_RESTART = "RestartContainer"  # its resizePolicy says that a change restarts the container
    UNSUPPORTED = "ResizeUnsupported"  # its kubelet does not report what its containers have
    ASKED_ANYWAY = "AskedAnyway"  # the pod asks for as many cores, whatever its main container has


STATIC_CPU_MANAGER: Final = "StaticCPUManager"
"""The reason on a node that gives whole cores to pods permanently: no other count would work."""


class Progressing(Enum):
    """What a kubelet says about the last change of a pod."""

    NOTHING = "nothing is pending"
    UNSEEN = "the kubelet has not seen the change yet"
    UNDER_WAY = "allocated, being applied"
    DEFERRED = "not enough free capacity now"
    INFEASIBLE = "never possible on this node"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSize:
    """The cores of one rank's main container, in millicores."""

    name: str  # of the pod
    uid: str
    version: str  # the pod's resourceVersion, as seen
    container: str
    wanted_m: int
    allocated_m: int
    actual_m: tuple[int, ...]  # request and, where there is one, limit as the runtime has them
    says: Progressing = Progressing.NOTHING
    reason: str = ""  # of what the kubelet says: one word and a sentence
    message: str = ""
    obstacle: Obstacle | None = None
    least_m: int = 0  # with fewer the pod asks for no less


WORDS: Final = {
    Obstacle.BEST_EFFORT: "its main container asks for no cores, so there are none to change",
    Obstacle.WOULD_RESTART: "its resizePolicy says that a change of cores restarts the container",
    Obstacle.UNSUPPORTED: "its node does not support changing cores of running pods",
    Obstacle.ASKED_ANYWAY: "its pod asks for more anyway, for an init container or in its own spec.resources",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeStep:
    """The state to write, the ranks to patch with their millicores, and when to decide again if nothing changes."""

    resize: Resize
    patches: tuple[tuple[RankSize, int], ...] = ()
    wake_s: float | None = None


def next_resize(
    answer: WishAnswer | None, told: Resize | None, attempt: int, sizes: Sequence[RankSize], now_s: float
) -> ResizeStep | None:
    """Return what the last answered wish needs next; None if nothing: no grant, it has ended, or no rank runs.

    `told`: the last written state, of any wish. `sizes`: all running ranks of the attempt. O(ranks)."""
    if answer is None or not answer.granted or not sizes:
        return None
    mine = told if told is not None and (told.attempt, told.sequence) == (attempt, answer.sequence) else None
    newer = told is not None and told.attempt == attempt and told.sequence > answer.sequence
    if newer or (mine is not None and mine.has_ended):
        return None
    now = mine or Resize(
        attempt=attempt,
        sequence=answer.sequence,
        state=ResizeState.RESIZING,
        wanted=answer.cores,
        cores=_cores_of_all(sizes),
        since_s=now_s,
    )
    if now.state is ResizeState.REVERTING:
        return _give_back(now, sizes, answer, now_s)
    why = _why_never(sizes, answer) or _why_late(now, sizes, answer, now_s)
    return _go_on(now, sizes, answer, now_s) if why is None else ResizeStep(resize=give_up(now, *why, now_s))


def give_up(now: Resize, reason: str, message: str, now_s: float) -> Resize:
    """Return the resize, to be taken back from now on. It is written first, so that nobody begins it again."""
    return replace(now, state=ResizeState.REVERTING, since_s=now_s, reason=reason, message=message)


def _go_on(now: Resize, sizes: Sequence[RankSize], answer: WishAnswer, now_s: float) -> ResizeStep:
    wanted_m = answer.cores * 1000
    if all(_is_settled(size, wanted_m) for size in sizes):
        done = _in_state(replace(now, cores=answer.cores, reason="", message=""), ResizeState.DONE, now_s)
        return ResizeStep(resize=done)
    deferred = next((size for size in sizes if size.says is Progressing.DEFERRED), None)
    troubled = deferred or next((size for size in sizes if size.reason), None)
    state = ResizeState.DEFERRED if deferred is not None else ResizeState.RESIZING
    told = _in_state(now, state, now_s)
    reason, message = (troubled.reason, f"{troubled.name}: {troubled.message}") if troubled is not None else ("", "")
    return ResizeStep(
        resize=replace(told, reason=reason, message=message),
        patches=tuple((size, wanted_m) for size in sizes if size.wanted_m != wanted_m),
        wake_s=answer.deadline_s if _has_deadline(now, sizes, answer) else None,
    )


def _why_never(sizes: Sequence[RankSize], answer: WishAnswer) -> tuple[str, str] | None:
    for size in sizes:
        if size.obstacle is not None and size.wanted_m != answer.cores * 1000:
            return size.obstacle.value, f"{size.name}: {WORDS[size.obstacle]}"
        if answer.cores * 1000 < min(size.least_m, size.wanted_m):
            return Obstacle.ASKED_ANYWAY.value, f"{size.name}: {WORDS[Obstacle.ASKED_ANYWAY]}"
        if size.says is Progressing.INFEASIBLE:
            return size.reason, f"{size.name}: {size.message}"
    return None


def _why_late(now: Resize, sizes: Sequence[RankSize], answer: WishAnswer, now_s: float) -> tuple[str, str] | None:
    late = [size for size in sizes if not _is_settled(size, answer.cores * 1000)]
    if now_s < answer.deadline_s or not late or not _has_deadline(now, sizes, answer):
        return None
    said = f" ({late[0].message})" if late[0].message else ""
    reason = LATE if any(size.reason or size.says is Progressing.DEFERRED for size in late) else NO_ANSWER
    did = "give cores back" if answer.code == TAKEN_BACK else "get the cores"
    return reason, f"{len(late)} of {len(sizes)} ranks did not {did} in time: {late[0].name}{said}"


def _has_deadline(now: Resize, sizes: Sequence[RankSize], answer: WishAnswer) -> bool:
    """Growth has one, and so have cores that a CPU job waits for: it must not wait for a node that never answers."""
    return answer.code == TAKEN_BACK or _grows(now, sizes)


def _grows(now: Resize, sizes: Sequence[RankSize]) -> bool:
    return now.wanted > now.cores or any(size.allocated_m < now.wanted * 1000 for size in sizes)


def _give_back(now: Resize, sizes: Sequence[RankSize], answer: WishAnswer, now_s: float) -> ResizeStep:
    """Withdraw what is not allocated; then make all ranks equal again, unless a node never allows it."""
    equalise = now_s < now.since_s + GIVING_BACK_S
    had_m = 1000 * now.cores if equalise and _goes_back(now, answer) else None
    targets = [(size, _target(size, had_m)) for size in sizes]
    if all(_is_settled(size, target_m) for size, target_m in targets):
        refused = replace(now, cores=_cores_of_all(sizes))
        return ResizeStep(resize=_in_state(refused, ResizeState.REFUSED, now_s))
    return ResizeStep(
        resize=now,
        patches=tuple((size, target_m) for size, target_m in targets if size.wanted_m != target_m),
        wake_s=now.since_s + GIVING_BACK_S if equalise else None,
    )


def _goes_back(now: Resize, answer: WishAnswer) -> bool:
    """True if all ranks get what they had before: what a shrink freed is withheld for them, unless a CPU job waits."""
    return now.cores < now.wanted or (now.cores > now.wanted and answer.code != TAKEN_BACK)


def _target(size: RankSize, had_m: int | None) -> int:
    """What all ranks had before; what the rank has now if it is refused for good, or if they do not go back (None).

    A deferred rank may still get it: were it withdrawn, nothing would be pending, and it would be asked for again."""
    is_refused = size.says is Progressing.INFEASIBLE or size.obstacle is not None
    return size.allocated_m if had_m is None or is_refused else had_m


def _is_settled(size: RankSize, cores_m: int) -> bool:
    """Done, by KEP-1287: nothing is pending, and wanted, allocated and actual are equal."""
    return size.says is Progressing.NOTHING and {size.wanted_m, size.allocated_m, *size.actual_m} == {cores_m}


def _cores_of_all(sizes: Sequence[RankSize]) -> int:
    return max(1, min(min(size.allocated_m, *size.actual_m) for size in sizes) // 1000)


def _in_state(resize: Resize, state: ResizeState, now_s: float) -> Resize:
    return resize if resize.state is state else replace(resize, state=state, since_s=now_s)
