"""One node: who uses its memory bandwidth, cores and GPUs, and what the agent does about it."""

from __future__ import annotations

from deploy.dashboards.boards import WINDOW, Board, Chart, Choice, Number, Row, per_second, quantile

_AT = 'node=~"$node"'

BOARD = Board(
    uid="coda-node",
    title="Coda / Node",
    says="Who uses a node's memory bandwidth, cores and GPUs, and what the agent does about it. Needs the node agent.",
    choices=(Choice(name="node", values_of="label_values(coda_agent_throttles, node)"),),
    rows=(
        Row(
            title="Now",
            panels=(
                Number(
                    title="Limits in force",
                    says="That the agents have set. kubectl get np shows each.",
                    expr=f"sum(coda_agent_throttles{{{_AT}}})",
                ),
                Number(
                    title="GPUs without measurements",
                    says="See the runbook of CodaGpuUnmeasured.",
                    expr=f"count(coda_gpu_healthy{{{_AT}}} == 0) or vector(0)",
                    bad_from=1,
                ),
                Number(
                    title="Oldest list of pods",
                    says="Above 5 minutes an agent neither throttles nor tunes.",
                    expr=f"max(coda_agent_pods_age_seconds{{{_AT}}})",
                    unit="s",
                    bad_from=300,
                ),
                Number(
                    title="Put back at the start",
                    says="Limits of an earlier agent that died, which this one undid.",
                    expr=f"sum(coda_agent_restored_at_start{{{_AT}}})",
                ),
            ),
        ),
        Row(
            title="Memory bandwidth",
            panels=(
                Chart(
                    title="Sockets",
                    says="Traffic, and the most that a socket can have.",
                    lines={
                        "{{node}}, {{socket}}": f"coda_memory_bandwidth_bytes_per_second{{{_AT}}}",
                        "{{node}}, {{socket}}, peak": f"coda_memory_bandwidth_peak_bytes_per_second{{{_AT}}}",
                    },
                    unit="Bps",
                ),
                Chart(
                    title="Pods",
                    says="The ten with the most traffic.",
                    lines={
                        "{{namespace}}/{{pod}}": "topk(10, sum by (namespace, pod)"
                        f" (coda_pod_memory_bandwidth_bytes_per_second{{{_AT}}}))"
                    },
                    unit="Bps",
                ),
                Chart(
                    title="Limits in force",
                    says="That the agent has set: groups of memory bandwidth, members of them, and CPU limits.",
                    lines={"{{node}}": f"sum by (node) (coda_agent_throttles{{{_AT}}})"},
                ),
            ),
        ),
        Row(
            title="Throttles",
            panels=(
                Chart(
                    title="Throttles made and released",
                    says="Contended and Probe begin one; NoGain, Calm, NoVictim, Probation and Blind end one.",
                    lines={
                        "{{means}}, {{reason}}": "sum by (means, reason)"
                        f" (increase(coda_agent_actions_total{{{_AT}}}[{WINDOW}]))",
                        "only observed: {{means}}, {{reason}}": "sum by (means, reason)"
                        f" (increase(coda_agent_observed_actions_total{{{_AT}}}[{WINDOW}]))",
                    },
                ),
                Chart(
                    title="From a reading to the throttle",
                    says="The last part of the 5 s from contention to a throttle; three windows come before.",
                    lines={"p99": quantile(0.99, "coda_agent_throttle_delay_seconds", where=_AT)},
                    unit="s",
                ),
                Chart(
                    title="Held by CPU limits",
                    says="Share of the kernel's periods in which a pod wanted more cores than it has: the worst ten.",
                    lines={
                        "{{namespace}}/{{pod}}": "topk(10, max by (namespace, pod)"
                        f" (coda_pod_cpu_throttled_ratio{{{_AT}}}))"
                    },
                    unit="percentunit",
                    most=1,
                ),
            ),
        ),
        Row(
            title="GPUs and cores",
            panels=(
                Chart(
                    title="GPU utilisation",
                    says="Busy share of the time, by GPU.",
                    lines={
                        "{{hostname}}, {{gpu}}": per_second(f"coda_gpu_busy_seconds_total{{{_AT}}}", "hostname", "gpu")
                        + " / "
                        + per_second(f"coda_gpu_measured_seconds_total{{{_AT}}}", "hostname", "gpu")
                    },
                    unit="percentunit",
                    most=1,
                ),
                Chart(
                    title="Cores",
                    says="The ten pods that use most.",
                    lines={"{{namespace}}/{{pod}}": f"topk(10, sum by (namespace, pod) (coda_pod_cpu_cores{{{_AT}}}))"},
                ),
                Chart(
                    title="GPU memory",
                    says="In use, by GPU.",
                    lines={"{{hostname}}, {{gpu}}": f"sum by (hostname, gpu) (coda_gpu_memory_used_bytes{{{_AT}}})"},
                    unit="bytes",
                ),
                Chart(
                    title="Who has GPUs",
                    says="By namespace. A GPU or slice that several containers share counts for each of them.",
                    lines={"{{namespace}}": f"sum by (namespace) (coda_gpu_owner{{{_AT}}})"},
                ),
            ),
        ),
        Row(
            title="The agent",
            panels=(
                Chart(
                    title="One round",
                    says="Measure, decide, act: it begins once a second, so it must stay below that.",
                    lines={"{{node}}, p90": quantile(0.9, "coda_agent_window_duration_seconds", "node", where=_AT)},
                    unit="s",
                ),
                Chart(
                    title="Cost",
                    says="Cores that the agent itself uses: 2 to 3 % of one is its budget.",
                    lines={
                        "{{node}}": f"sum by (node) (rate(process_cpu_seconds_total{{{_AT}}}[{WINDOW}])"
                        " and on (instance) coda_agent_throttles)"
                    },
                ),
                Chart(
                    title="What fails",
                    says="Things that did not go as wanted, and writes that the API server did not take.",
                    lines={
                        "{{node}}, problems": per_second(f"coda_agent_problems_total{{{_AT}}}", "node"),
                        "{{node}}, writes": per_second(f"coda_agent_failed_writes_total{{{_AT}}}", "node"),
                    },
                    unit="ops",
                ),
                Chart(
                    title="Sensors",
                    says="1 while a sensor gives samples. Not every node has each.",
                    lines={"{{node}}, {{sensor}}": f"min by (node, sensor) (coda_agent_sensor_up{{{_AT}}})"},
                    most=1,
                ),
            ),
        ),
    ),
)
