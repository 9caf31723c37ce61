"""Trace rows in one line, for these tests."""

from coda_sim.traces import JobKind, RecordedStatus, Row


def row(
    job_id: str = "hv1",
    *,
    gpus: int = 1,
    cpus: float | None = 1.0,
    nodes: int | None = 1,
    submit_s: float = 0.0,
    duration_s: float = 60.0,
    user: str = "u1",
    status: RecordedStatus = RecordedStatus.PASSED,
    line: int = 2,
) -> Row:
    return Row(
        line=line,
        job_id=job_id,
        user=user,
        virtual_cluster="venus",
        submit_s=submit_s,
        duration_s=duration_s,
        gpus=gpus,
        cpus=cpus,
        memory_gib=None,
        nodes_requested=nodes,
        status=status,
        kind=JobKind.GPU if gpus else JobKind.CPU,
    )
