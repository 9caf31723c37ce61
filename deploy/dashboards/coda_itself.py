"""Coda itself: who leads, how fast it answers and decides, and what fails."""

from __future__ import annotations

from deploy.dashboards.boards import WINDOW, Board, Chart, Number, Row, most, per_second, quantile, quantiles

BOARD = Board(
    uid="coda-itself",
    title="Coda / Coda itself",
    says="Who leads, how fast Coda answers and decides, and what fails. Each alert has a page in docs/runbooks.",
    rows=(
        Row(
            title="Now",
            panels=(
                Number(
                    title="Planners",
                    says="1 is right.",
                    expr="sum(coda_planner_is_leader)",
                    good_from=1,
                    bad_from=2,
                ),
                Number(
                    title="Operators",
                    says="1 is right.",
                    expr="sum(coda_operator_is_leader)",
                    good_from=1,
                    bad_from=2,
                ),
                Number(
                    title="Jobs left out",
                    says="Nothing is decided about them: see the runbook of CodaJobsLeftOut.",
                    expr='sum(coda_planner_waiting_jobs{code=~"Unreadable|Undecidable|StatusUnwritable"})',
                    bad_from=1,
                ),
                Number(
                    title="Watches broken",
                    says="Kinds of objects of which a part sees no changes.",
                    expr="count(coda_watch_in_touch == 0) or vector(0)",
                    bad_from=1,
                ),
                Number(
                    title="Objects unreadable",
                    says="Left out alone until they change.",
                    expr="sum(max by (resource) (coda_unreadable_objects))",
                    bad_from=1,
                ),
                Number(
                    title="Node loss suspended",
                    says="1 while so many nodes are not Ready that none is called lost.",
                    expr=most("coda_operator_node_loss_suspended"),
                    bad_from=1,
                ),
            ),
        ),
        Row(
            title="Delays",
            panels=(
                Chart(
                    title="Filter",
                    says="Answering kube-scheduler. Milliseconds are usual; at 1 s it gives up.",
                    lines=quantiles("coda_extender_filter_duration_seconds"),
                    unit="s",
                ),
                Chart(
                    title="Prioritize and preempt",
                    says="The other calls; preempt is seldom called.",
                    lines={
                        "prioritize p99": quantile(0.99, "coda_extender_prioritize_duration_seconds"),
                        "preempt p99": quantile(0.99, "coda_extender_preempt_duration_seconds"),
                    },
                    unit="s",
                ),
                Chart(
                    title="One decision",
                    says="Of all that waits, without its writes. 0.1 s is the budget for 5000 nodes and 10 000 jobs.",
                    lines=quantiles("coda_planner_round_duration_seconds"),
                    unit="s",
                ),
                Chart(
                    title="First reason of a new job",
                    says="2 s is the budget.",
                    lines=quantiles("coda_planner_first_reason_delay_seconds"),
                    unit="s",
                ),
                Chart(
                    title="Change of the planner's leader",
                    says="From the last renewal of a leader to the first round of the next. 15 s is the budget.",
                    lines=quantiles("coda_planner_takeover_duration_seconds"),
                    unit="s",
                ),
                Chart(
                    title="From a place to bound pods",
                    says="10 s is the budget for 512 pods.",
                    lines=quantiles("coda_operator_launch_duration_seconds"),
                    unit="s",
                ),
                Chart(
                    title="One step of a job",
                    says="By the operator.",
                    lines=quantiles("coda_operator_reconcile_duration_seconds"),
                    unit="s",
                ),
            ),
        ),
        Row(
            title="Work",
            panels=(
                Chart(
                    title="Placements",
                    says="Committed, released to be launched, taken over from an earlier leader.",
                    lines={
                        "committed": per_second("coda_planner_commits_total"),
                        "released": per_second("coda_planner_releases_total"),
                        "taken over": per_second("coda_planner_adoptions_total"),
                    },
                    unit="ops",
                ),
                Chart(
                    title="Placements dropped",
                    says="Before their pods ran. UNBOUND: the pods of a CPU job were not bound in time.",
                    lines={"{{reason}}": per_second("coda_planner_dropped_plans_total", "reason")},
                    unit="ops",
                ),
                Chart(
                    title="Answers to kube-scheduler",
                    says="By verb and outcome.",
                    lines={
                        "{{verb}}, {{outcome}}": per_second("coda_extender_answers_total", "verb", "outcome"),
                    },
                    unit="ops",
                ),
                Chart(
                    title="Reasons written",
                    says="To jobs that wait.",
                    lines={"written": per_second("coda_planner_pending_writes_total")},
                    unit="ops",
                ),
                Chart(
                    title="Foreign pods in flight",
                    says="They passed the filter and are not bound yet; given up: never heard of again.",
                    lines={
                        "in flight": most("coda_extender_in_flight_pods"),
                        "given up": most("coda_extender_in_flight_timeouts"),
                    },
                ),
                Chart(
                    title="History",
                    says="Records of finished jobs: stored each second, waiting, and whether the store is away.",
                    lines={
                        "stored": per_second("coda_operator_history_stored_total"),
                        "waiting": most("coda_operator_history_waiting"),
                        "away": most("coda_operator_history_away"),
                    },
                ),
                Chart(
                    title="History of CPU jobs",
                    says="CPU jobs that ended: counted each second, waiting for the store, and lost or refused.",
                    lines={
                        "counted": per_second("coda_operator_history_cpu_jobs_stored_total"),
                        "waiting": most("coda_operator_history_cpu_jobs_waiting"),
                        "lost": most("coda_operator_history_cpu_jobs_lost"),
                        "refused": per_second("coda_operator_history_cpu_jobs_refused_total"),
                    },
                ),
            ),
        ),
        Row(
            title="Errors",
            panels=(
                Chart(
                    title="Errors of ours",
                    says="The planner's have a traceback in the log; the operator's steps are tried again.",
                    lines={
                        "planner": per_second("coda_planner_errors_total"),
                        "operator's steps": per_second("coda_operator_reconcile_errors_total"),
                    },
                    unit="ops",
                ),
                Chart(
                    title="Planner processes lost",
                    says="By cause. Each pauses planning for seconds.",
                    lines={"{{cause}}": f"sum by (cause) (increase(coda_planner_processes_lost_total[{WINDOW}]))"},
                ),
                Chart(
                    title="Writes that were not done",
                    says="Of the planner, by why. conflict and stale are ordinary: others write too.",
                    lines={"{{reason}}": per_second("coda_planner_refused_writes_total", "reason")},
                    unit="ops",
                ),
                Chart(
                    title="Requests refused",
                    says="Ended for what they cost, or for not being HTTP. Only kube-scheduler should call.",
                    lines={"{{reason}}": per_second("coda_extender_refused_requests_total", "reason")},
                    unit="ops",
                ),
                Chart(
                    title="Records lost",
                    says="Of finished jobs.",
                    lines={"{{reason}}": per_second("coda_operator_history_dropped_total", "reason")},
                    unit="ops",
                ),
                Chart(
                    title="Rules for failures",
                    says="Of the platform's own: those that are used, and those that are refused.",
                    lines={"{{state}}": most("coda_operator_failure_rules", "state")},
                ),
                Chart(
                    title="Jobs whose status cannot be written",
                    says="They are left out for a while.",
                    lines={"jobs": most("coda_planner_unwritable_jobs")},
                ),
            ),
        ),
        Row(
            title="Memory and watches",
            panels=(
                Chart(
                    title="Memory",
                    says="Resident: extender, planner process, operator.",
                    lines={
                        "{{process}}": most("coda_extender_memory_bytes", "process"),
                        "operator": "max(process_resident_memory_bytes and on (instance) coda_operator_is_leader)",
                    },
                    unit="bytes",
                ),
                Chart(
                    title="CPU of the operator",
                    says="Cores.",
                    lines={
                        "operator": f"max(rate(process_cpu_seconds_total[{WINDOW}])"
                        " and on (instance) coda_operator_is_leader)"
                    },
                ),
                Chart(
                    title="Watches",
                    says="By kind: 1 while every part sees its changes as they happen.",
                    lines={"{{resource}}": "min by (resource) (coda_watch_in_touch)"},
                    most=1,
                ),
            ),
        ),
    ),
)
