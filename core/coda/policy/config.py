"""The policy's configuration: one frozen value, passed down. What must not live here: reading files or environment.

Each field states unit, range and why this default; a value outside its range is refused when the object is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from coda.errors import InvalidInput
from coda.model.job import ArraySizes
from coda.policy.node_score import TYPICAL_MIX, Mix
from coda.policy.policies import DEFAULT, policy_of


class Level(NamedTuple):
    """A topology level: the word users write in `locality`, and the node label whose values are its domains."""

    name: str
    label: str


class Stride(Enum):
    """How far one move of the allocator's search goes."""

    UNIT = "Unit"  # one core
    SCALED = "Scaled"  # one core, then one per GPU of the rank, twice, then doubling


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningConfig:
    """The allocator's search. Raises InvalidInput for values out of range."""

    window_s: float = 90.0
    """Seconds of one profiling step, > 0; its second half counts. Default: CODA, Table II."""

    noise_margin: float = 0.01
    """Relative difference of utilisation that counts as none, 0 to below 1. Our choice: above the slight
    drop per core beyond the optimum (0.4 %), below half of the shallowest rise up to it on 8 GPUs (2.5 %)."""

    stride: Stride = Stride.SCALED
    """Unit is CODA's step as published. Default scaled: the same steps on every model of Table II, and a third less
    time with 8 GPUs per rank (`docs/results.md`, Allocator)."""

    patience: int = 0
    """Further moves up after one without gain, 0..8. Default 0: CODA's rule; 1 looks past flat pieces, at one more
    step on every other curve (`docs/results.md`, Allocator)."""

    faint_moves: int = 1
    """Further moves up after a gain within the margin, 0..8. CODA's rule is 0; default 1: the same steps on Table II,
    and a third to a half of the loss on curves that rise slowly (`docs/results.md`, Allocator)."""

    certainty: float = 1.6
    """Standard errors by which a difference must be clear of the margin, >= 0; else the count is measured again.
    Default: one decision in twenty is wrong (one-sided normal)."""

    extra_windows: int = 2
    """Further windows at one count while it is not certain, 0..20. Default: under noise of 3 % on plateaus,
    answers more than a core off fall from 9 % to 3 %."""

    idle_share: float = 0.01
    """GPU utilisation below which a window says nothing (loading, evaluating, waiting), 0..1. Our choice."""

    silent_windows: int = 3
    """Windows in a row without utilisation that are repeated before the search gives up, 0..1000. Our choice."""

    loading_windows: int = 40
    """The same before anything was measured, 0..1000. Our choice: a job may load its data for an hour first, and
    nothing has been changed on it."""

    least_samples: int = 10
    """Samples that the second half of a window needs, 2..1000. Our choice: below it, the spread means little."""

    def __post_init__(self) -> None:
        _require(self.window_s > 0, "window_s must be above 0", self.window_s)
        _require(0 <= self.noise_margin < 1, "noise_margin must be 0 to below 1", self.noise_margin)
        _require(0 <= self.patience <= 8, "patience must be 0 to 8", self.patience)
        _require(0 <= self.faint_moves <= 8, "faint_moves must be 0 to 8", self.faint_moves)
        _require(self.certainty >= 0, "certainty must not be negative", self.certainty)
        _require(0 <= self.extra_windows <= 20, "extra_windows must be 0 to 20", self.extra_windows)
        _require(0 <= self.idle_share <= 1, "idle_share must be 0 to 1", self.idle_share)
        _require(0 <= self.silent_windows <= 1000, "silent_windows must be 0 to 1000", self.silent_windows)
        _require(0 <= self.loading_windows <= 1000, "loading_windows must be 0 to 1000", self.loading_windows)
        _require(2 <= self.least_samples <= 1000, "least_samples must be 2 to 1000", self.least_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionConfig:
    """The contention eliminator. Raises InvalidInput for values out of range. All shares are 0..1."""

    trigger_share: float = 0.75
    """Memory bandwidth over peak from which a socket is contended. Default: CODA."""

    release_share: float = 0.65
    """Bandwidth over peak under which a throttle may be taken back, below `trigger_share`. Our choice (CODA: none)."""

    drop_share: float = 0.05
    """A training job suffers this far below its own reference, relative. Our choice (CODA: "has dropped")."""

    votes: int = 3
    """Windows of the last `windows` in which both must hold, 1..`windows`. Our choice: one spike is no contention."""

    window_s: float = 1.0
    """Seconds between two windows, > 0; a gap of more than `windows` of them breaks every row. Default: the slowest at
    which five windows fit into the 5 s that a throttle may take."""

    windows: int = 5
    """Windows looked back on, 1..60. Default: with 1-s windows a throttle comes within 5 s of the first."""

    step_s: float = 5.0
    """Seconds between two throttles of a socket, >= 0. Default: slow enough for the last one to show."""

    settle_s: float = 10.0
    """Seconds until a throttle is judged by what the victims gained, >= `step_s`. Our choice."""

    gain_share: float = 0.25
    """Part of what a victim had lost that it must regain, else the throttle is undone. Our choice."""

    release_hold_s: float = 60.0
    """Seconds under `release_share` before the first release, >= 0. Default: first release within 75 s."""

    release_step_s: float = 20.0
    """Seconds between two release steps, > `settle_s`. Default: eight steps within 4 min of the cause's end."""

    guard_share: float = 0.05
    """What a release is predicted to bring back must stay this far under the trigger. Our choice: against flapping."""

    reentry_hold_s: float = 600.0
    """Hold instead of `release_hold_s`, doubling each time up to 1 h, once a release led to a throttle within this
    time, for pods that still press. Default: at most two actions per 10 min under constant load."""

    futile_s: float = 600.0
    """Seconds that a socket is left alone, at least, after throttles that helped nobody; and until its pods, its jobs
    or its load change. Our choice."""

    blind_s: float = 60.0
    """Seconds without sensors after which throttles are taken back, >= 0. Our choice: the lease of a throttle."""

    negligible_share: float = 0.02
    """A pod below this part of the peak is not worth throttling. Our choice."""

    learn_windows: int = 10
    """Calm windows before a job has a reference, 1..1000. Our choice: noise of 3 % then moves it by 1 %."""

    follow_windows: float = 60.0
    """Windows in which the reference follows a lasting change, by two thirds; >= 1. Our choice: slow against steps."""

    def __post_init__(self) -> None:
        shares = (self.drop_share, self.gain_share, self.guard_share, self.negligible_share, self.release_share)
        _require(all(0 <= share < 1 for share in shares), "shares must be 0 to below 1", shares)
        _require(self.window_s > 0, "window_s must be above 0", self.window_s)
        _require(self.release_share < self.trigger_share, "release_share must be below trigger_share", shares[-1])
        _require(1 <= self.votes <= self.windows <= 60, "votes must be 1 to windows, windows at most 60", self.votes)
        times = (self.step_s, self.release_hold_s, self.reentry_hold_s, self.futile_s, self.blind_s)
        _require(all(time >= 0 for time in times), "times must not be negative", times)
        _require(self.step_s <= self.settle_s < self.release_step_s, "step_s <= settle_s < release_step_s", times[0])
        _require(1 <= self.learn_windows <= 1000, "learn_windows must be 1 to 1000", self.learn_windows)
        _require(self.follow_windows >= 1, "follow_windows must be at least 1", self.follow_windows)


class Part(Enum):
    """What can be left out of a policy that has it, to see what it is worth."""

    ALLOCATOR = "allocator"  # jobs keep the cores they asked for
    ARRAYS = "arrays"  # one pool for all
    BORROWING = "borrowing"  # each array keeps to its own cores
    MIGRATION = "migration"  # small jobs stay where they borrowed
    ELIMINATOR = "eliminator"  # nobody is throttled


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraysConfig:
    """The division between the arrays where history gives none. Raises InvalidInput for values out of range."""

    reserve_cores_per_gpu: float = 4.0
    """Cores of each node that belong to the GPU array, per GPU of the node, 0..1024. Our choice: what tuned jobs of
    the models that CODA names use per GPU, on average."""

    large_share: float = 0.7
    """Part of all GPUs in the large sub-array, 0..1. Our choice: jobs of four GPUs or more hold 60 % of the GPUs in use
    in the fitted month, and CODA takes the most they ever needed."""

    def __post_init__(self) -> None:
        _require(0 <= self.reserve_cores_per_gpu <= 1024, "reserve_cores_per_gpu must be 0 to 1024", self)
        _require(0 <= self.large_share <= 1, "large_share must be 0 to 1", self.large_share)

    def sizes(self, gpus: int) -> ArraySizes:
        """The division of a cluster of so many GPUs."""
        return ArraySizes(reserve_cores_per_gpu=self.reserve_cores_per_gpu, large_gpus=round(self.large_share * gpus))


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise InvalidInput(f"{rule}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Everything about the policy that an installation may change. Raises InvalidInput for values out of range."""

    levels: tuple[Level, ...] = (
        Level("rack", "topology.coda.scheduler/rack"),
        Level("node", "kubernetes.io/hostname"),
    )
    """Topology levels, widest first; names unique. Empty: no locality beyond fewest nodes. Default: a rack is the
    usual network domain (Philly, section 2.1), and every kubelet sets the host name label."""

    bind_deadline_s: float = 60.0
    """Seconds from commit until all ranks must be bound, > 0. Default: a 512-pod gang binds in under 10 s, so a
    minute is only missed when something took the capacity; nothing is held half for longer."""

    resize_deadline_s: float = 30.0
    """Seconds from a grant of more cores until every rank must have them, > 0; else all of it is taken back. Default:
    a kubelet takes 1 to 3 s, and what it defers it may try again only every 3 min, in the middle of a measurement."""

    refusal_holders: int = 5
    """Jobs named in one refusal, >= 0. Default: as many as a person reads; the largest come first."""

    unknown_category_cores: int = 4
    """Cores per GPU first tried for a job without category, 1..1024. Our choice (CODA gives none): between CV's 3
    and the 5 of NLP and speech."""

    policy: str = DEFAULT
    """One of `policies.POLICIES`. Default: arrival order, as clusters without Coda have it."""

    mix: Mix = TYPICAL_MIX
    """The workload that fragmentation is judged by (fgd); weights not negative. Default: the month of CODA's text."""

    without: frozenset[Part] = frozenset()
    """Parts of the policy that are left out. Default: none."""

    arrays: ArraysConfig = ArraysConfig()
    """How the cluster is divided, where the policy has arrays."""

    overtaking_limit_s: float | None = 6 * 3600.0
    """Seconds after which a waiting job that does not fit is overtaken no more, but has nodes kept for it
    (`reserving`), > 0; None: never. Only under policies that limit overtaking. Our choice: long beside most run times
    (CODA: 40 % above 2 h), so that keeping nodes stays an exception."""

    tuning: TuningConfig = TuningConfig()
    """The allocator's search."""

    contention: ContentionConfig = ContentionConfig()
    """The contention eliminator."""

    def __post_init__(self) -> None:
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise InvalidInput(f"topology levels must have different names, got {', '.join(names)}")
        if not all(level.name and level.label for level in self.levels):
            raise InvalidInput("a topology level needs a name and a node label")
        if not self.bind_deadline_s > 0:
            raise InvalidInput(f"bind_deadline_s must be above 0, got {self.bind_deadline_s}")
        if not self.resize_deadline_s > 0:
            raise InvalidInput(f"resize_deadline_s must be above 0, got {self.resize_deadline_s}")
        limit_s = self.overtaking_limit_s
        _require(limit_s is None or limit_s > 0, "overtaking_limit_s must be above 0", limit_s)
        if self.refusal_holders < 0:
            raise InvalidInput(f"refusal_holders must not be negative, got {self.refusal_holders}")
        policy_of(self.policy)
        _require(all(typical.weight >= 0 for typical in self.mix), "weights of a mix must not be negative", self.mix)
        if not 1 <= self.unknown_category_cores <= 1024:
            raise InvalidInput(f"unknown_category_cores must be 1 to 1024, got {self.unknown_category_cores}")

    def level_index(self, name: str) -> int | None:
        """Where `name` stands in `levels`; None for a level this installation does not have."""
        return next((index for index, level in enumerate(self.levels) if level.name == name), None)
