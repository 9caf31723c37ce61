"""What the month's numbers say of themselves: their origins, and what its GPU jobs ask for."""

from __future__ import annotations

from typing import Any, get_type_hints

from coda_sim.traces.request_table import RequestTable
from coda_sim.workload import MonthConfig
from coda_sim.workload.month import cores_shares
from coda_sim.workload.provenance import Origin


def origins_of(config: type[Any]) -> dict[str, Origin]:
    """Origin by field name of a class; a field without an origin is absent."""
    hints = get_type_hints(config, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: mark for name, found in marks.items() for mark in found if isinstance(mark, Origin)}


def month_requests() -> tuple[RequestTable, ...]:
    """What the month's GPU jobs ask for, as a request table."""
    config = MonthConfig()
    return tuple(
        RequestTable(gpus=gpus, cpus=cpus, jobs=gpus_share * share)
        for gpus, gpus_share in config.gpus
        for cpus, share in sorted(cores_shares(config, gpus).items())
    )
