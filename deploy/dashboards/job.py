"""One job: do its GPUs work, has it the cores for that, and does anybody disturb it?"""

from __future__ import annotations

from deploy.dashboards.boards import WINDOW, Board, Chart, Choice, Row, most, per_second, quantiles

_JOB = 'namespace=~"$namespace",trainingjob=~"$job"'
_POD = 'namespace=~"$namespace",pod=~"$job-[0-9]+-[0-9]+"'

BOARD = Board(
    uid="coda-job",
    title="Coda / Job",
    says="Do the GPUs of a job work, has it the cores for that, and does anybody disturb it. Needs the node agent.",
    choices=(
        Choice(name="namespace", values_of='label_values(coda_gpu_utilization_ratio{pod!=""}, namespace)', many=False),
        Choice(
            name="job",
            values_of='label_values(coda_gpu_utilization_ratio{namespace="$namespace"}, pod)',
            pattern="/(.*)-[0-9]+-[0-9]+$/",
            many=False,
        ),
    ),
    rows=(
        Row(
            title="Ranks",
            panels=(
                Chart(
                    title="GPU utilisation",
                    says="Busy share of the time of the GPUs of each rank's pod.",
                    lines={
                        "{{pod}}": f"{per_second(f'coda_gpu_busy_seconds_total{{{_POD}}}', 'pod')}"
                        f" / {per_second(f'coda_gpu_measured_seconds_total{{{_POD}}}', 'pod')}"
                    },
                    unit="percentunit",
                    most=1,
                ),
                Chart(
                    title="Cores",
                    says="That each rank uses. The steps of the tuning are in status.tuning of the job.",
                    lines={"{{pod}}": f"sum by (pod) (coda_pod_cpu_cores{{{_POD}}})"},
                ),
                Chart(
                    title="Utilisation by cores",
                    says="What the search for cores measured with each number of cores per rank.",
                    lines={"{{cores}} cores": f"max by (cores) (coda_tuning_gpu_utilization_ratio{{{_JOB}}})"},
                    unit="percentunit",
                    most=1,
                ),
                Chart(
                    title="Held by its CPU limit",
                    says="Share of the kernel's periods in which a rank wanted more cores than it has.",
                    lines={"{{pod}}": f"max by (pod) (coda_pod_cpu_throttled_ratio{{{_POD}}})"},
                    unit="percentunit",
                    most=1,
                ),
                Chart(
                    title="GPU memory",
                    says="In use, by rank.",
                    lines={"{{pod}}": f"sum by (pod) (coda_gpu_memory_used_bytes{{{_POD}}})"},
                    unit="bytes",
                ),
                Chart(
                    title="Failed attempts",
                    says="By whose fault. Job: it counts against spec.retries. Nothing before the first one.",
                    lines={"{{fault}}": f"max by (fault) (coda_job_failed_attempts{{{_JOB}}})"},
                ),
                Chart(
                    title="Memory bandwidth",
                    says="Traffic of each rank, of all sockets. Nothing where the node cannot measure it.",
                    lines={"{{pod}}": f"sum by (pod) (coda_pod_memory_bandwidth_bytes_per_second{{{_POD}}})"},
                    unit="Bps",
                ),
                Chart(
                    title="Use of the sockets it runs on",
                    says="Traffic as a share of the peak, by node and socket. Above 75 % others may slow the job.",
                    lines={
                        "{{instance}}, socket {{socket}}": "(coda_memory_bandwidth_bytes_per_second"
                        " / coda_memory_bandwidth_peak_bytes_per_second) and on (instance, socket)"
                        f" coda_pod_memory_bandwidth_bytes_per_second{{{_POD}}}"
                    },
                    unit="percentunit",
                    most=1,
                ),
            ),
        ),
        Row(
            title="All jobs, to compare",
            panels=(
                Chart(
                    title="Tuning",
                    says="Changes of jobs' tunings, by the phase that begins.",
                    lines={"{{phase}}": per_second("coda_agent_tuning_steps_total", "phase")},
                    unit="ops",
                ),
                Chart(
                    title="Attempts that ended",
                    says="By what ended them. RankFailed: the job's own failure.",
                    lines={"{{reason}}": f"sum by (reason) (increase(coda_operator_attempts_ended_total[{WINDOW}]))"},
                ),
                Chart(
                    title="Stops for other jobs",
                    says="By what the stopped job answered. Unasked: it wants no notice.",
                    lines={"{{answer}}": f"sum by (answer) (increase(coda_operator_stops_total[{WINDOW}]))"},
                ),
                Chart(
                    title="Work lost by stops",
                    says="GPUs that do again what they had done.",
                    lines={"GPUs": per_second("coda_operator_lost_gpu_seconds_total")},
                ),
                Chart(
                    title="Trials before gangs",
                    says="By what came of them. Failed: the job ended before it held its GPUs.",
                    lines={"{{outcome}}": f"sum by (outcome) (increase(coda_operator_trials_total[{WINDOW}]))"},
                ),
                Chart(
                    title="Cost and gain of trials",
                    says="GPUs that trials hold, and that gangs would have held until they failed as late.",
                    lines={
                        "held": per_second("coda_operator_trial_gpu_seconds_total"),
                        "saved": per_second("coda_operator_trial_saved_gpu_seconds_total"),
                    },
                ),
                Chart(
                    title="From a place to bound pods",
                    says="From the decision to place a gang until all its pods are bound.",
                    lines=quantiles("coda_operator_launch_duration_seconds"),
                    unit="s",
                ),
                Chart(
                    title="Changes of cores",
                    says="Done, or why not.",
                    lines={"{{reason}}": f"sum by (reason) (increase(coda_operator_resizes_total[{WINDOW}]))"},
                ),
                Chart(
                    title="Answers to wishes for cores",
                    says="Of running jobs whose tuning wants more or fewer.",
                    lines={"{{answer}}": f"sum by (answer) (increase(coda_planner_answered_wishes_total[{WINDOW}]))"},
                ),
                Chart(
                    title="Jobs by phase",
                    says="TrainingJobs that have not finished.",
                    lines={"{{phase}}": most('coda_jobs{phase!~"Succeeded|Failed"}', "phase")},
                ),
            ),
        ),
    ),
)
