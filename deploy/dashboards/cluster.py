"""The cluster: is it used, what is idle and why, and who lends to whom."""

from __future__ import annotations

from deploy.dashboards.boards import Board, Chart, Number, Row, most, per_second

_GPUS = "sum(max by (state) (coda_cluster_gpus))"

BOARD = Board(
    uid="coda-cluster",
    title="Coda / Cluster",
    says="Is the cluster used, what is idle and why, and who lends to whom.",
    rows=(
        Row(
            title="Now",
            panels=(
                Number(title="GPUs", says="GPUs of all nodes.", expr=_GPUS),
                Number(
                    title="GPUs in use",
                    says="Share of all GPUs that pods have, or that are kept for a gang that starts.",
                    expr=f'max(coda_cluster_gpus{{state="Used"}}) / {_GPUS}',
                    unit="percentunit",
                ),
                Number(
                    title="Busy while in use",
                    says="Share of the time in which GPUs that pods have really worked. Low: more cores may help.",
                    expr='sum(rate(coda_gpu_busy_seconds_total{pod!=""}[5m]))'
                    ' / sum(rate(coda_gpu_measured_seconds_total{pod!=""}[5m]))',
                    unit="percentunit",
                ),
                Number(title="Jobs waiting", says="Jobs without a place.", expr="sum(coda_planner_waiting_jobs)"),
                Number(
                    title="GPUs wanted",
                    says="By waiting jobs that nodes would help.",
                    expr=most("coda_queue_gpus_wanted"),
                ),
                Number(
                    title="Nodes not Ready",
                    says="As the operator sees them.",
                    expr=most("coda_operator_unready_nodes"),
                    bad_from=1,
                ),
                Number(
                    title="Suspect nodes",
                    says="No job starts there for a while: jobs of several users failed alike on them.",
                    expr=most("coda_operator_cordoned_nodes"),
                    bad_from=1,
                ),
            ),
        ),
        Row(
            title="Use",
            panels=(
                Chart(
                    title="GPUs by state",
                    says="Each GPU is in one state. FreeBesideOthers: other GPUs of its node are in use, so no job "
                    "that wants a whole node fits. FreeWithoutCores: its node has no free core for it.",
                    lines={"{{state}}": most("coda_cluster_gpus", "state")},
                    stacked=True,
                ),
                Chart(
                    title="Cores by state",
                    says="Each core is in one state: asked for, free, or of a node that takes no pods.",
                    lines={"{{state}}": most("coda_cluster_cores", "state")},
                    stacked=True,
                ),
                Chart(
                    title="Work that GPUs do",
                    says="Busy share of the time of all GPUs, and of those that pods have.",
                    lines={
                        "all": f"{per_second('coda_gpu_busy_seconds_total')}"
                        f" / {per_second('coda_gpu_measured_seconds_total')}",
                        "in use": per_second('coda_gpu_busy_seconds_total{pod!=""}')
                        + " / "
                        + per_second('coda_gpu_measured_seconds_total{pod!=""}'),
                    },
                    unit="percentunit",
                    most=1,
                ),
            ),
        ),
        Row(
            title="Fragmentation",
            panels=(
                Chart(
                    title="Why free GPUs are not whole nodes",
                    says="Share of the free GPUs in service, by where they are. Nothing to show while none is free.",
                    lines={
                        "{{state}}": 'max by (state) (coda_cluster_gpus{state=~"Free.*"}) / ignoring (state)'
                        ' group_left () sum(max by (state) (coda_cluster_gpus{state=~"Free.*"}))'
                    },
                    unit="percentunit",
                    stacked=True,
                    most=1,
                ),
                Chart(
                    title="Jobs that wait for GPUs, cores or memory",
                    says="Waiting jobs by what is missing, beside the GPUs that are free.",
                    lines={
                        "{{code}}": most('coda_planner_waiting_jobs{code=~"Insufficient.*|NoDomainFits"}', "code"),
                        "free GPUs": 'sum(max by (state) (coda_cluster_gpus{state=~"Free.*"}))',
                    },
                ),
            ),
        ),
        Row(
            title="Arrays and lending",
            panels=(
                Chart(
                    title="GPUs by array",
                    says="Large: jobs of four GPUs or more.",
                    lines={
                        "{{array}}, used": most('coda_array_gpus{state="Used",array!="Cpu"}', "array"),
                        "{{array}}, waited for": most('coda_array_gpus{state="Waiting",array!="Cpu"}', "array"),
                    },
                ),
                Chart(
                    title="Cores by array",
                    says="Borrowed: cores of the GPU array that CPU jobs give back when a GPU job needs them.",
                    lines={
                        "{{array}}": most('coda_array_cores{state="Used"}', "array"),
                        "borrowed": most('coda_array_cores{state="Borrowed",array="Cpu"}'),
                    },
                ),
                Chart(
                    title="Jobs stopped for others",
                    says="Reclaim: for borrowed cores. Migrate: a guest goes home. Preempt: for a job that goes first.",
                    lines={"{{cause}}": per_second("coda_planner_stops_total", "cause")},
                    unit="ops",
                ),
            ),
        ),
    ),
)
