"""Quotas of the virtual clusters that a workload names."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from coda_sim.traces import Row
from coda_sim.workload import Cores, Gang, gangs_from_rows, shape_from_text
from coda_sim.workload.virtual_clusters import virtual_clusters
from tests.sim.worlds import row


def gangs(*rows: Row) -> tuple[Gang, ...]:
    return gangs_from_rows(rows, shape_from_text("9x8x28"), Cores())[0]


def of(tenant: str, *, gpus: int, duration_s: float = 60.0) -> Row:
    return replace(row(f"{tenant}-{gpus}-{duration_s}", gpus=gpus, duration_s=duration_s), virtual_cluster=tenant)


def test_quotas_are_in_proportion_to_the_gpu_time_of_the_jobs() -> None:
    rows = of("a", gpus=2, duration_s=300), of("a", gpus=1, duration_s=150), of("b", gpus=1, duration_s=250)
    assert [(one.name, one.gpus) for one in virtual_clusters(gangs(*rows), 8)] == [("a", 6), ("b", 2)]


def test_who_names_no_tenant_or_wants_no_gpu_has_no_quota() -> None:
    assert virtual_clusters(gangs(of("", gpus=1), of("c", gpus=0)), 8) == ()


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 8), st.integers(1, 10**6)), min_size=1, max_size=20),
    st.integers(1, 1000),
)
def test_all_gpus_are_someones_whatever_the_order(jobs: list[tuple[str, int, int]], gpus: int) -> None:
    rows = [of(tenant, gpus=count, duration_s=float(time)) for tenant, count, time in jobs]
    rows = [replace(one, job_id=str(number)) for number, one in enumerate(rows)]
    found = virtual_clusters(gangs(*rows), gpus)
    assert sum(one.gpus or 0 for one in found) == gpus
    assert virtual_clusters(gangs(*reversed(rows)), gpus) == found
