"""What makes a simulation comparable with a replay: racks as a local cluster has them, and run times as recorded."""

from pathlib import Path

import pytest

from coda.errors import InvalidInput
from coda_lab.kubelets.nodes import LABEL_RACK, node_specs
from coda_sim.engine import nodes_of_shape
from coda_sim.results.audit import read_jobs
from coda_sim.runs import RunOrder, check, run_order, shape_of
from coda_sim.traces.trace import COLUMNS
from coda_sim.workload import WorkloadSource
from coda_sim.workload.model_profiles import RECORDED

SPREAD = (  # a gang of four nodes with neighbours, which slow it down by any other profile set
    "spread,u1,v,0,1000,8,4,,4,passed,gpu",
    "near,u1,v,0,5000,1,20,,1,passed,gpu",
    "far,u1,v,0,500,1,4,,1,passed,gpu",
)


def order(folder: Path, lines: tuple[str, ...], *, profiles: str = RECORDED, cluster: str, racks: int = 1) -> RunOrder:
    trace = folder / "jobs.csv"
    trace.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return RunOrder(
        source=WorkloadSource(trace=trace),
        cluster=cluster,
        racks=racks,
        profiles=profiles,
        policy="arrival",
        seed=1,
        records=folder / "jobs.csv.gz",
    )


@pytest.mark.parametrize("profiles", [RECORDED, "paper"])
def test_under_recorded_every_job_runs_for_its_recorded_time_whatever_it_gets(tmp_path: Path, profiles: str) -> None:
    one = order(tmp_path, SPREAD, profiles=profiles, cluster="4x3x28")
    run_order(one)
    assert one.records is not None
    ran_s = {job.job_id: job.spans[-1].end_s - job.spans[0].start_s for job in read_jobs(one.records)}
    assert (ran_s == {"spread": 1000.0, "near": 5000.0, "far": 500.0}) is (profiles == RECORDED)


@pytest.mark.parametrize(("racks", "nodes"), [(1, {"node-0002", "node-0003"}), (2, {"node-0003", "node-0004"})])
def test_a_gang_stays_within_a_rack_where_there_are_several(tmp_path: Path, racks: int, nodes: set[str]) -> None:
    lines = ("first,u1,v,0,1000,4,4,,1,passed,gpu", "gang,u1,v,1,1000,8,8,,2,passed,gpu")
    one = order(tmp_path, lines, cluster="4x4x28", racks=racks)
    run_order(one)
    assert one.records is not None
    (gang,) = (job for job in read_jobs(one.records) if job.job_id == "gang")
    assert {node for node, _ in gang.spans[0].held} == nodes


@pytest.mark.parametrize(("cluster", "count"), [("2x8x48,3x4x28", 2), ("2x8x48", 2), ("7x4x28", 3), ("2x4x28", 1)])
def test_racks_are_those_of_a_local_cluster(tmp_path: Path, cluster: str, count: int) -> None:
    nodes = nodes_of_shape(shape_of(order(tmp_path, SPREAD, cluster=cluster, racks=count)))
    assert [node.labels[LABEL_RACK] for node in nodes] == [spec.rack for spec in node_specs(cluster, racks=count)]


def test_more_racks_than_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--racks 3: give 1 to 2"):
        check(order(tmp_path, SPREAD, cluster="2x8x48", racks=3))
