from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.errors import InvalidInput
from coda_sim.traces import Row
from coda_sim.traces.request_table import RequestTable
from coda_sim.workload import ClusterShape, Cores, Gang, RefusedRow, gangs_from_rows, shape_from_text
from coda_sim.workload.cluster_shape import GIB, NodeGroup
from coda_sim.workload.gangs import Change, gang_from_row
from tests.sim.worlds import row

VENUS = shape_from_text("121x8x48")


def asked(gang: Gang | RefusedRow) -> tuple[int, int, int, tuple[Change, ...]]:
    assert isinstance(gang, Gang), gang
    return gang.replicas, gang.gpus_per_replica, gang.cpus_per_replica, gang.changes


@pytest.mark.parametrize(
    ("source", "shape", "expected"),
    [
        pytest.param(row(gpus=1, cpus=1), "12x8x48", (1, 1, 1, ()), id="one GPU, one core"),
        pytest.param(row(gpus=160, cpus=800, nodes=20), "121x8x48", (20, 8, 40, ()), id="160 GPUs on 20 nodes"),
        pytest.param(row(gpus=16, cpus=16), "12x8x48", (2, 8, 8, (Change.REPLICAS,)), id="raised until the GPUs fit"),
        pytest.param(row(gpus=8, cpus=88), "12x8x48", (2, 4, 44, (Change.REPLICAS,)), id="raised until the cores fit"),
        pytest.param(
            row(gpus=16, cpus=16, nodes=3), "12x8x48", (4, 4, 4, (Change.REPLICAS,)), id="to the next divisor"
        ),
        pytest.param(row(gpus=2, cpus=8, nodes=5), "12x8x48", (2, 1, 4, (Change.REPLICAS,)), id="at most one per GPU"),
        pytest.param(row(gpus=16, cpus=16, nodes=None), "12x8x48", (2, 8, 8, (Change.REPLICAS,)), id="nodes unknown"),
        pytest.param(
            row(gpus=2, cpus=5, nodes=2), "12x8x48", (2, 1, 3, (Change.CORES_ROUNDED,)), id="cores rounded up"
        ),
        pytest.param(
            row(gpus=1, cpus=0.5), "12x8x48", (1, 1, 1, (Change.CORES_ROUNDED,)), id="half a core becomes one"
        ),
        pytest.param(row(gpus=1, cpus=0), "12x8x48", (1, 1, 1, (Change.CORES_ROUNDED,)), id="no core becomes one"),
        pytest.param(row(gpus=2, cpus=None), "12x8x48", (1, 2, 8, (Change.CORES_ASSUMED,)), id="four cores per GPU"),
        pytest.param(
            row(gpus=32, cpus=32), "2x8x48,9x4x28", (8, 4, 4, (Change.REPLICAS,)), id="whole gang must fit too"
        ),
        pytest.param(
            row(gpus=0, cpus=100), "12x8x48", (3, 0, 34, (Change.REPLICAS, Change.CORES_ROUNDED)), id="CPU only"
        ),
        pytest.param(row(gpus=0, cpus=1), "12x8x48", (1, 0, 1, ()), id="CPU only, one core"),
    ],
)
def test_a_row_becomes_a_gang(source: Row, shape: str, expected: tuple[int, int, int, tuple[Change, ...]]) -> None:
    assert asked(gang_from_row(source, shape_from_text(shape), Cores())) == expected


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        pytest.param(row(gpus=1, cpus=88), "12x5x28", id="one GPU cannot be split, 88 cores fit no node"),
        pytest.param(row(gpus=160, cpus=800, nodes=20), "12x8x48", id="more GPUs than the cluster has"),
        pytest.param(row(gpus=13, cpus=13), "1x8x48,1x4x28", id="thirteen GPUs divide by nothing that fits"),
        pytest.param(row(gpus=1, cpus=1), "12x0x48", id="no GPU anywhere"),
        pytest.param(row(gpus=0, cpus=1000), "2x8x48", id="more cores than the cluster has"),
    ],
)
def test_what_fits_at_no_count_is_refused(source: Row, shape: str) -> None:
    refused = gang_from_row(source, shape_from_text(shape), Cores())
    assert isinstance(refused, RefusedRow)
    assert "never fits the cluster" in refused.sentence


def test_a_refusal_names_the_numbers() -> None:
    refused = gang_from_row(row(gpus=1, cpus=88), shape_from_text("12x5x28"), Cores())
    assert isinstance(refused, RefusedRow)
    assert refused.sentence == (
        "asks 1 GPU and 88 cores (nodes_requested 1): in 1 or more equal replicas of whole GPUs "
        "it never fits the cluster; 12x5x28 has 5 GPUs and 28 cores on its largest node, 60 GPUs in all"
    )


def test_refused_rows_are_kept_apart_in_order() -> None:
    rows = [row("a"), row("b", cpus=99), row("c")]
    gangs, refused = gangs_from_rows(rows, VENUS, Cores())
    assert [gang.row.job_id for gang in gangs] == ["a", "c"]
    assert [one.row.job_id for one in refused] == ["b"]


def test_cores_are_drawn_as_often_as_the_table_says_and_the_same_for_a_row_every_time() -> None:
    cores = Cores(table=(RequestTable(gpus=8, cpus=8, jobs=25), RequestTable(gpus=8, cpus=40, jobs=75)), seed=1)
    rows = [row(f"ph{n}", gpus=8, cpus=None) for n in range(2000)]
    drawn = Counter(cores.of(one) for one in rows)
    assert set(drawn) == {8.0, 40.0}
    assert drawn[40.0] / 2000 == pytest.approx(0.75, abs=0.04)
    assert [cores.of(one) for one in reversed(rows[:50])] == [cores.of(one) for one in rows[:50]][::-1]
    assert [Cores(table=cores.table, seed=2).of(one) for one in rows[:50]] != [cores.of(one) for one in rows[:50]]


def test_a_count_the_table_lacks_takes_the_ratio_of_the_nearest() -> None:
    cores = Cores(table=(RequestTable(gpus=1, cpus=2, jobs=1), RequestTable(gpus=4, cpus=20, jobs=1)))
    assert cores.of(row(gpus=3, cpus=None)) == 15.0
    assert cores.of(row(gpus=2, cpus=None)) == 4.0
    assert cores.of(row(gpus=3, cpus=7)) == 7.0


def test_shapes_are_read_and_written_alike() -> None:
    shape = shape_from_text("20x8x28, 60x4x28")
    assert shape == ClusterShape(groups=(NodeGroup(nodes=20, gpus=8, cores=28), NodeGroup(nodes=60, gpus=4, cores=28)))
    assert str(shape) == "20x8x28,60x4x28"
    assert shape.gpus == 400


@pytest.mark.parametrize(
    "text", ["", "8x8", "0x8x48", "8x8x0", "8x8x48x2x1", "-1x8x48", "8x8x48,", "8,8,48", "1e9x1x1"]
)
def test_a_shape_that_cannot_be_read_is_one_clear_error(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no group of nodes: write NODESxGPUSxCORES, as 12x8x48"):
        shape_from_text(text)


@given(
    gpus=st.integers(1, 200),
    cpus=st.floats(0, 900),
    nodes=st.none() | st.integers(1, 30),
    shape=st.sampled_from(["121x8x48", "80x5x28", "20x8x28,60x4x28", "3x2x8"]),
)
def test_a_gang_keeps_its_gpus_gets_its_cores_and_fits(gpus: int, cpus: float, nodes: int | None, shape: str) -> None:
    cluster = shape_from_text(shape)
    gang = gang_from_row(row(gpus=gpus, cpus=cpus, nodes=nodes), cluster, Cores())
    if isinstance(gang, RefusedRow):
        return
    assert gang.gpus == gpus
    assert cpus <= gang.replicas * gang.cpus_per_replica
    assert cluster.ranks(gang.gpus_per_replica, gang.cpus_per_replica) >= gang.replicas
    assert gang.replicas >= min(nodes or 1, gpus)


def test_nodes_with_a_memory_split_a_job_until_each_rank_fits_it() -> None:
    asked = replace(row("a1", gpus=4, cpus=8), memory_gib=100.0)
    gang = gang_from_row(asked, shape_from_text("4x4x28x64"), Cores())
    assert isinstance(gang, Gang)
    assert (gang.replicas, gang.memory_bytes_per_replica) == (2, 50 * GIB)
    without_limit = gang_from_row(asked, shape_from_text("4x4x28"), Cores())
    assert isinstance(without_limit, Gang)
    assert (without_limit.replicas, without_limit.memory_bytes_per_replica) == (1, 0)


def test_a_job_whose_memory_fits_no_node_is_refused_with_both_amounts() -> None:
    refused = gang_from_row(replace(row("a1", gpus=1), memory_gib=100.0), shape_from_text("4x4x28x64"), Cores())
    assert isinstance(refused, RefusedRow)
    assert "asks 1 GPU and 1 cores with 100 GiB" in refused.sentence
    assert "28 cores with 64 GiB on its largest node" in refused.sentence


def test_either_all_nodes_have_a_memory_or_none() -> None:
    assert str(shape_from_text("2x4x28x64,1x8x28x128")) == "2x4x28x64,1x8x28x128"
    with pytest.raises(InvalidInput, match="either all groups of nodes have a memory"):
        shape_from_text("2x4x28x64,1x8x28")
