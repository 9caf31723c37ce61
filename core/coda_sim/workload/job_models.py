"""What no trace records of a job: the model that it trains, and the memory bandwidth of a CPU job.

Both are drawn from the seed and the job's own id, so they do not depend on other jobs.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated

from coda.allocator.start_point import Category, Hints
from coda.errors import InvalidInput, require
from coda_sim.traces.trace import JobKind, Row
from coda_sim.workload.model_profiles import GB, ModelProfile, ProfileSet
from coda_sim.workload.provenance import Origin, Provenance

_DRAWS = 1 << 64

A, T = Provenance.ASSUMED, Provenance.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class JobModelConfig:
    """The shares of models and of heavy CPU jobs, 0..1. Raises InvalidInput if those of the models do not sum to 1."""

    models: Annotated[
        tuple[tuple[str, float], ...], Origin(A, "of GPU jobs; CODA: most train NLP and speech models (T)")
    ] = (
        ("BAT", 0.20),
        ("Transformer", 0.20),
        ("Wavenet", 0.20),
        ("DeepSpeech", 0.20),
        ("Resnet-50", 0.07),
        ("InceptionV3", 0.05),
        ("Alexnet", 0.04),
        ("VGG16", 0.04),
    )
    heavy_share: Annotated[float, Origin(T, "CODA: CPU jobs heavy on memory bandwidth")] = 0.005
    heavy_gb_per_s: Annotated[tuple[float, float], Origin(A, "of a heavy one, equally likely")] = (
        60.0,
        100.0,
    )
    light_gb_per_s: Annotated[float, Origin(A, "of every other CPU job: too little to matter")] = 0.0
    standing_user: Annotated[str, Origin(A, "whose CPU jobs are all heavy; empty: nobody's, as in CODA's month")] = ""
    standing_gb_per_s: Annotated[float, Origin(A, "of each of those: most of the 256 GB/s of a node")] = 240.0
    wrong_category_share: Annotated[
        float, Origin(A, "of GPU jobs: their user names another category, without hints; 0: as in CODA's month")
    ] = 0.0

    def __post_init__(self) -> None:
        if not math.isclose(sum(share for _, share in self.models), 1.0, abs_tol=1e-9):
            raise InvalidInput("traits: the shares of the models must sum to 1")
        require(0 <= self.wrong_category_share <= 1, "wrong_category_share must be 0 to 1", self.wrong_category_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobModel:
    """The model of a job. `profile`: of a GPU job; None: CPU job.

    `bandwidth_bytes_per_s`: of a CPU job at its requested cores, linear in them; 0 for a GPU job: its profile has it.
    """

    profile: ModelProfile | None
    bandwidth_bytes_per_s: float = 0.0


class JobModelDraws:
    """Draws the model of every job under one seed. Raises InvalidInput for a model that the profile set lacks."""

    def __init__(self, profiles: ProfileSet, config: JobModelConfig, *, seed: int) -> None:
        unknown = sorted({model for model, _ in config.models} - profiles.profile_by_model.keys())
        if unknown:
            raise InvalidInput(f"profile set {profiles.name} has no model {', '.join(unknown)}")
        self._config = config
        self._seed = seed
        self._sums = list(accumulate(share for _, share in config.models))
        self._by_model = [JobModel(profile=profiles.profile_by_model[model]) for model, _ in config.models]
        self._wrong_by_model = [_misnamed(model) for model in self._by_model]
        self._light = JobModel(profile=None, bandwidth_bytes_per_s=config.light_gb_per_s * GB)
        self._standing = JobModel(profile=None, bandwidth_bytes_per_s=config.standing_gb_per_s * GB)

    def of(self, row: Row) -> JobModel:
        """Return the model of a row, always the same; rows may share one object."""
        uniform = self._uniform(row)
        if row.kind is JobKind.GPU:
            models = self._wrong_by_model if self._is_misnamed(row) else self._by_model
            return models[min(bisect(self._sums, uniform * self._sums[-1]), len(self._sums) - 1)]
        if self._config.standing_user and row.user == self._config.standing_user:
            return self._standing
        if uniform >= self._config.heavy_share:
            return self._light
        low, high = self._config.heavy_gb_per_s
        return JobModel(
            profile=None, bandwidth_bytes_per_s=(low + (high - low) * uniform / self._config.heavy_share) * GB
        )

    def _is_misnamed(self, row: Row) -> bool:
        share = self._config.wrong_category_share
        return share > 0 and self._uniform(row, ":category") < share

    def _uniform(self, row: Row, of: str = "") -> float:
        digest = hashlib.blake2b(f"{self._seed}:{row.job_id}{of}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / _DRAWS


def _misnamed(model: JobModel) -> JobModel:
    """The same model under the next category, and without hints: its user does not know what it is."""
    assert model.profile is not None
    categories = list(Category)
    wrong = categories[(categories.index(model.profile.category) + 1) % len(categories)]
    return JobModel(profile=replace(model.profile, category=wrong, hints=Hints()))
