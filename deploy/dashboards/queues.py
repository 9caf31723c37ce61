"""Queues and tenants: who waits, how long, for what, and whether tenants get their share."""

from __future__ import annotations

from deploy.dashboards.boards import Board, Chart, Choice, Number, Row, most, per_second, quantile, quantiles

_OF = 'virtual_cluster=~"$tenant"'

BOARD = Board(
    uid="coda-queues",
    title="Coda / Queues and tenants",
    says="Who waits, how long and for what, and whether tenants get what is theirs.",
    choices=(Choice(name="tenant", values_of="label_values(coda_tenant_jobs, virtual_cluster)"),),
    rows=(
        Row(
            title="Now",
            panels=(
                Number(title="Jobs waiting", says="Jobs without a place.", expr="sum(coda_planner_waiting_jobs)"),
                Number(
                    title="GPUs wanted",
                    says="By waiting jobs that nodes would help.",
                    expr=most("coda_queue_gpus_wanted"),
                ),
                Number(
                    title="Jobs running",
                    says="Of all arrays.",
                    expr='sum(max by (array) (coda_array_jobs{state="Running"}))',
                ),
                Number(
                    title="Tenants over their quota",
                    says="They borrow, and give back when another wants what is its own.",
                    expr='count(max by (virtual_cluster) (coda_tenant_gpus{state="Borrowed"}) > 0) or vector(0)',
                ),
            ),
        ),
        Row(
            title="Waiting",
            panels=(
                Chart(
                    title="Waiting jobs by cause",
                    says="The reason that each job shows. docs/why-jobs-wait.md explains the words.",
                    lines={"{{code}}": most("coda_planner_waiting_jobs", "code")},
                    stacked=True,
                ),
                Chart(
                    title="How long jobs waited",
                    says="From the begin of the wait to the launch of the pods, of jobs that started lately.",
                    lines={
                        "p50": quantile(0.5, "coda_job_wait_seconds"),
                        "p90": quantile(0.9, "coda_job_wait_seconds"),
                        "p99": quantile(0.99, "coda_job_wait_seconds"),
                    },
                    unit="s",
                ),
                Chart(
                    title="What jobs waited for",
                    says="Seconds of waiting per second, by the cause that they are booked as (docs/why-jobs-wait.md).",
                    lines={"{{cause}}": per_second("coda_job_delay_seconds_total", "cause")},
                    stacked=True,
                ),
                Chart(
                    title="Waiting jobs by array",
                    says="Large: four GPUs or more in all. Small: fewer. Cpu: none.",
                    lines={"{{array}}": most('coda_array_jobs{state="Waiting"}', "array")},
                    stacked=True,
                ),
                Chart(
                    title="Jobs by phase",
                    says="TrainingJobs that the API server has; finished ones stay for a week.",
                    lines={"{{phase}}": most("coda_jobs", "phase")},
                ),
                Chart(
                    title="GPUs that jobs wait for",
                    says="By array, of all that nodes would help, and of those that need another kind of node.",
                    lines={
                        "{{array}}": most('coda_array_gpus{state="Waiting"}', "array"),
                        "all": most("coda_queue_gpus_wanted"),
                        "of another kind": most("coda_queue_gpus_unmatched"),
                    },
                ),
                Chart(
                    title="Until a new job says why it waits",
                    says="From its creation to its first reason; 2 s is what it may take.",
                    lines=quantiles("coda_planner_first_reason_delay_seconds"),
                    unit="s",
                ),
            ),
        ),
        Row(
            title="Tenants",
            panels=(
                Chart(
                    title="GPUs used",
                    says="By the tenant's training jobs, and by those of the tenants below it.",
                    lines={"{{virtual_cluster}}": most(f'coda_tenant_gpus{{state="Used",{_OF}}}', "virtual_cluster")},
                ),
                Chart(
                    title="GPUs used of the quota",
                    says="Above 100 %: borrowed from others. Tenants without a quota are not shown.",
                    lines={
                        "{{virtual_cluster}}": most(f'coda_tenant_gpus{{state="Used",{_OF}}}', "virtual_cluster")
                        + " / "
                        + most(f'coda_tenant_gpus{{state="Quota",{_OF}}}', "virtual_cluster")
                    },
                    unit="percentunit",
                ),
                Chart(
                    title="GPUs waited for",
                    says="By the tenant's training jobs, and by those of the tenants below it.",
                    lines={
                        "{{virtual_cluster}}": most(f'coda_tenant_gpus{{state="Waiting",{_OF}}}', "virtual_cluster")
                    },
                ),
                Chart(
                    title="Cores of CPU jobs",
                    says="Used by the tenant's CPU jobs, and borrowed beyond its quota.",
                    lines={
                        "{{virtual_cluster}}, used": most(
                            f'coda_tenant_cores{{state="Used",{_OF}}}', "virtual_cluster"
                        ),
                        "{{virtual_cluster}}, borrowed": most(
                            f'coda_tenant_cores{{state="Borrowed",{_OF}}}', "virtual_cluster"
                        ),
                    },
                ),
                Chart(
                    title="Jobs",
                    says="That run, and that wait.",
                    lines={
                        "{{virtual_cluster}}, {{state}}": most(f"coda_tenant_jobs{{{_OF}}}", "virtual_cluster", "state")
                    },
                ),
            ),
        ),
    ),
)
