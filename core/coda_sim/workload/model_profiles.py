"""Profile sets: what the models of a workload need from a node's cores and memory; each number has its origin.

A set is a data file in `coda_sim/profile_sets`. It may extend another set; then it has only the differences.
`speed_curves` uses the numbers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from coda.allocator.start_point import Category, Hints
from coda.errors import InvalidInput
from coda_sim.workload.provenance import Origin, Provenance

PROFILE_SETS: Final = ("paper", "steep", "synergy")
RECORDED: Final = "recorded"
"""The set with which every job runs for its recorded time, as in `coda replay`: all models are alike."""
GB: Final = 1e9

_HINTS: Final = ("pipelined", "many_weights", "complex_processing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all models of a set have in common. Shares are 0..1."""

    base_share: float  # of the best speed, left without any core (extrapolated)
    drop_per_core: float  # share of the best speed lost per core above the best count
    drop_at_most_cores: int  # cores above the best count after which nothing more is lost
    multi_node_cores: int  # best count per node over several nodes
    multi_node_speed: float  # on several quiet nodes of a rack, relative to one node
    busy_nodes_speed: float  # further factor if neighbours load those nodes
    racks_speed: float  # further factor over several racks
    contention_from: float  # share of a node's bandwidth from which sensitive models lose speed
    node_bandwidth_bytes_per_s: float  # of the whole node


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelProfile:
    """The profile of one model. Compared by identity: there is one per set and name."""

    name: str
    category: Category
    hints: Hints  # as its user gives them
    one_gpu_cores: float  # best count with one GPU
    more_gpu_cores: float  # cores to add per further GPU of the node
    peak_utilisation: float  # of its GPUs, 0..1, at the best count and undisturbed
    bandwidth_bytes_per_s: float  # per GPU
    contention_loss: float  # share of the speed lost when the node's bandwidth is used up
    measured: tuple[tuple[float, float], ...]  # (cores per GPU, share of the best speed), rising; empty: the formula
    shared: Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSet:
    """All models of a set, and the origin of each column of numbers."""

    name: str
    summary: str
    profile_by_model: Mapping[str, ModelProfile]
    origin_by_column: Mapping[str, Origin]


@cache
def profile_set(name: str) -> ProfileSet:
    """Return one of `PROFILE_SETS`, or `RECORDED`; each is read once. Raises InvalidInput for another name."""
    if name not in (*PROFILE_SETS, RECORDED):
        raise InvalidInput(f"{name!r} is no profile set: choose one of {', '.join(PROFILE_SETS)}, {RECORDED}")
    return profile_set_from_tables(name, _tables(name))


def profile_set_from_tables(name: str, tables: Mapping[str, Any]) -> ProfileSet:
    """Return a set from the extended tables of its file. Raises InvalidInput for a number without an origin."""
    shared, models, origins = tables["shared"], tables["models"], tables["origins"]
    used = {column for table in (shared, *models.values()) for column in table}
    unexplained = sorted(used - origins.keys())
    if unexplained:
        raise InvalidInput(f"profile set {name}: no origin for {', '.join(unexplained)}")
    common = _shared(shared)
    return ProfileSet(
        name=name,
        summary=tables["summary"],
        profile_by_model=MappingProxyType({model: _profile(model, row, common) for model, row in models.items()}),
        origin_by_column=MappingProxyType(
            {column: Origin(Provenance(origin["tag"]), origin["source"]) for column, origin in origins.items()}
        ),
    )


def _tables(name: str) -> dict[str, Any]:
    tables = tomllib.loads((files("coda_sim") / "profile_sets" / f"{name}.toml").read_text(encoding="utf-8"))
    below = tables.pop("extends", None)
    return _merged(_tables(below), tables) if below else tables


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below` with the differences in `above`, table by table."""
    return {
        key: _merged(below[key], above[key])
        if key in above and key in below and isinstance(above[key], dict)
        else above.get(key, below.get(key))
        for key in (*below, *(key for key in above if key not in below))
    }


def _shared(table: Mapping[str, Any]) -> Shared:
    columns = dict(table)
    columns["node_bandwidth_bytes_per_s"] = columns.pop("node_bandwidth_gb_per_s") * GB
    return Shared(**columns)


def _profile(name: str, row: Mapping[str, Any], shared: Shared) -> ModelProfile:
    return ModelProfile(
        name=name,
        category=Category(row["category"]),
        hints=Hints(**{hint: row.get(hint, False) for hint in _HINTS}),
        one_gpu_cores=row["one_gpu_cores"],
        more_gpu_cores=row["more_gpu_cores"],
        peak_utilisation=row["peak_utilisation"],
        bandwidth_bytes_per_s=row["bandwidth_gb_per_s"] * GB,
        contention_loss=row["contention_loss"],
        measured=tuple((cores, share) for cores, share in row.get("measured", ())),
        shared=shared,
    )
