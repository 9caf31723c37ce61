"""What extender and planner process say to each other, and how it is framed.

First come one `Setup` and any number of `Past`. A question is any number of `Values` and one `Question`. An answer is
any number of `ChangedRefusals` and `Orders` and one `AnswerEnd`, or a `Failure`. Messages are small: to write or read
one takes less than a millisecond, so that a filter call never waits longer. Pickle is safe here: both ends are our own,
and nobody else has the socket.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum, auto
from functools import cache
from io import BytesIO
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from coda.cycle import Part
from coda.history import RunGroup
from coda.model import JobId, WaitCode
from coda.model.decision import Denial, Fault, Grant, Start, Stop, WaitReason
from coda.placements import PlacementAction, PlacementDefect
from coda.placements.review import DropCause
from coda.policy import PolicyConfig

Item = TypeVar("Item")

PREFIX: Final = struct.Struct("<I")  # bytes of the message that follows
MOST_BYTES: Final = 64 << 20  # no message comes near: a job of 4096 ranks takes 0.2 MB
_WEIGHT: Final = 16  # of a message: jobs with up to `_NAMES` ranks; measured, about 0.1 ms
_NAMES: Final = 64
_GROUPS: Final = 50  # of a message
REFUSALS: Final = 50  # of a message: to compare one with the job that shows it takes 5 us


class Kind(Enum):
    """What is asked."""

    CYCLE = auto()
    REVIEW = auto()


class Setup(NamedTuple):
    """The first message."""

    config: PolicyConfig


class Past(NamedTuple):
    """Run times of jobs that finished before. It comes before the first question, or never."""

    groups: tuple[RunGroup, ...]


class Values(NamedTuple):
    """Values of a part of the snapshot, by key; None: gone. `is_first_of_all`: forget all others."""

    part: Part
    items: Sequence[tuple[str, Any]]
    is_first_of_all: bool = False


class Question(NamedTuple):
    """Answer about the snapshot as it is after all `Values` so far."""

    kind: Kind
    epoch: int
    now_s: float
    in_flight_for_s: float = 0.0  # see `CycleSnapshot`


class RefusedAlike(NamedTuple):
    """Jobs refused for one reason."""

    generation: int
    reason: WaitReason
    jobs: tuple[JobId, ...]


class ChangedRefusals(NamedTuple):
    """Refusals that are not as in the last answer, and jobs that are not refused any more."""

    groups: tuple[RefusedAlike, ...] = ()
    gone: tuple[JobId, ...] = ()


class ReviewOf(NamedTuple):
    """A `PlacementReview`, with the job's id instead of the job."""

    job: JobId
    action: PlacementAction
    defect: PlacementDefect | DropCause | None
    awaits_stops: bool


Order = Start | Stop | Grant | Denial | ReviewOf


class Orders(NamedTuple):
    """A part of the decision, or of the reviews."""

    items: tuple[Order, ...]


class AnswerEnd(NamedTuple):
    """The last message of an answer. Of a review only the reviews count."""

    postponed: tuple[JobId, ...] = ()
    jobs_by_code: Mapping[WaitCode, int] = {}
    gpus_wanted: int = 0
    gpus_unmatched: int = 0
    wake_s: float | None = None
    faults: tuple[Fault, ...] = ()
    apart: Fault | None = None


class Failure(NamedTuple):
    """The question could not be answered: an error of ours, with its traceback."""

    text: str


Message = Setup | Past | Values | Question | ChangedRefusals | Orders | AnswerEnd | Failure


class _Reducers(dict[type, Callable[[Any], Any]]):
    """How each dataclass is pickled: by the values of its fields. Pickle's own way is slower, and does not work for a
    frozen class of the compiled core (docs/decisions/0028)."""

    def __missing__(self, cls: type) -> Callable[[Any], Any]:
        if not is_dataclass(cls):
            raise KeyError(cls)
        names = _field_names(cls)
        values_of = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
        reducer = self[cls] = lambda value: (_build, (cls, values_of(value)))
        return reducer


_REDUCERS: Final = _Reducers()


@cache
def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


def _build(cls: type, values: tuple[Any, ...]) -> Any:
    return cls(**dict(zip(_field_names(cls), values, strict=True)))


def frame(message: Message) -> bytes:
    """The message with its length before it."""
    content = BytesIO(b"\0" * PREFIX.size)
    content.seek(PREFIX.size)
    pickler = pickle.Pickler(content, protocol=5)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(message)
    PREFIX.pack_into(content.getbuffer(), 0, content.tell() - PREFIX.size)
    return content.getvalue()


def past_in_messages(groups: Sequence[RunGroup]) -> Iterator[Past]:
    """The groups as messages of bounded size, the last ones first: so the first ones are learned last."""
    for end in range(len(groups), 0, -_GROUPS):
        yield Past(tuple(groups[max(0, end - _GROUPS) : end]))


def values_in_messages(part: Part, items: Sequence[tuple[str, Any]], *, is_whole: bool) -> Iterator[Values]:
    """The values as messages of bounded size; at least one if they are the whole part."""
    is_first = is_whole
    for some in in_portions(items, lambda item: _names_of(item[1])):
        yield Values(part, some, is_first)
        is_first = False
    if is_first:
        yield Values(part, (), is_whole)


def orders_in_messages(orders: Iterable[Order]) -> Iterator[Orders]:
    """The orders as messages of bounded size."""
    for some in in_portions(orders, _names_of):
        yield Orders(tuple(some))


def in_portions(items: Iterable[Item], names_of: Any) -> Iterator[list[Item]]:
    """The items in lists, each of at most `_WEIGHT` times `_NAMES` names or of one item."""
    portion: list[Item] = []
    weight = 0
    for item in items:
        weight += 1 + names_of(item) // _NAMES
        if portion and weight > _WEIGHT:
            yield portion
            portion, weight = [], 1 + names_of(item) // _NAMES
        portion.append(item)
    if portion:
        yield portion


def _names_of(value: Any) -> int:
    """How many node names a value has: they are most of a large one."""
    nodes = getattr(getattr(value, "placement", None) or value, "nodes", None)
    return len(nodes) if nodes is not None else 0
