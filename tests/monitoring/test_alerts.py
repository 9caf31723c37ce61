"""Every alert: it fires when it should and not otherwise, names metrics that exist, and has its page."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from coda_kube.certificates import DAY_S
from tests.monitoring.expressions import ALERTS, Json, alerts, kinds, metrics_in, program
from tests.surface.sources import ROOT

RUNBOOKS = ROOT / "docs" / "runbooks"
SECTIONS = ("Meaning", "Impact", "Diagnosis", "Mitigation")
MINUTES = 40  # of each series, a sample a minute; the longest `for` and window fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Series with which an alert fires at the end, with these labels, and series with which it does not."""

    alert: str
    fires: dict[str, str]
    calm: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    fires_also: tuple[tuple[dict[str, str], dict[str, str]], ...] = ()  # for other series, with these labels


def always(value: float) -> str:
    return f"{value:g}x{MINUTES}"


def growing(step: float) -> str:
    return f"0+{step:g}x{MINUTES}"


def lately(value: float, minutes: int = 1) -> str:
    """Zero until these last minutes: shorter than the alert waits."""
    return f"0x{MINUTES - minutes} {value:g}x{minutes}"


def histogram(name: str, labels: str = "", **counts_by_bound: float) -> dict[str, str]:
    """Buckets that grow by these counts a minute, such as le_0_1=3."""
    bounds = {word.removeprefix("le_").replace("_", "."): count for word, count in counts_by_bound.items()}
    bounds["+Inf"] = max(bounds.values())
    buckets = {f'{name}_bucket{{{labels}le="{bound}"}}': growing(count) for bound, count in bounds.items()}
    return buckets | {f"{name}_count{{{labels[:-1]}}}": growing(bounds["+Inf"])}


PLANS, LEADS = "coda_planner_is_leader", "coda_operator_is_leader"
ROUND, REASON = "coda_planner_round_duration_seconds", "coda_planner_first_reason_delay_seconds"
FILTER, WINDOW = "coda_extender_filter_duration_seconds", "coda_agent_window_duration_seconds"
ANSWERS = "coda_extender_answers_total"
KEPT_OUT, LAUNCHES = "coda_operator_kept_out", "coda_operator_launch_duration_seconds_count"
STARTED = "process_start_time_seconds"
APART = "coda_planner_set_apart"
REFUSED = "coda_extender_refused_requests_total"
OLDEST = "coda_jobs_oldest_seconds"
EXPIRY = "coda_operator_certificate_expiry_timestamp_seconds"
NODE = {"instance": "10.0.0.1:9092", "node": "n1", "pod": "coda-agent-x"}
OF_AGENT = 'namespace="coda-system",pod="coda-agent-x"'
AT = 'instance="10.0.0.1:9092",node="n1",pod="coda-agent-x"'

CASES = (
    Case(
        alert="CodaPlannerAbsent",
        fires={f'{PLANS}{{pod="a"}}': always(0), f'{PLANS}{{pod="b"}}': always(0)},
        calm={f'{PLANS}{{pod="a"}}': always(0), f'{PLANS}{{pod="b"}}': always(1)},
    ),
    Case(
        alert="CodaPlannerErrors",
        fires={"coda_planner_errors_total": lately(1, 5)},
        calm={"coda_planner_errors_total": always(3), f'{APART}{{kind="node"}}': always(0)},
        fires_also=(
            (  # an hour after the error
                {"coda_planner_errors_total": always(1), f'{APART}{{kind="node"}}': always(1)},
                {"kind": "node"},
            ),
        ),
    ),
    Case(
        alert="CodaPlannerProcessLost",
        fires={'coda_planner_processes_lost_total{cause="died"}': growing(0.1)},
        calm={'coda_planner_processes_lost_total{cause="died"}': lately(1, 5)},
        labels={"cause": "died"},
    ),
    Case(
        alert="CodaRestarts",
        fires={f"{STARTED}{{{AT}}}": growing(600), f"{PLANS}{{{AT}}}": always(1)},
        calm={
            f"{STARTED}{{{AT}}}": "1x35 2x4",
            f"{PLANS}{{{AT}}}": always(1),
            f'{STARTED}{{instance="of-others"}}': growing(600),
        },
        labels={"part": "extender"},
        fires_also=(
            ({f"{STARTED}{{{AT}}}": growing(600), f"{LEADS}{{{AT}}}": always(1)}, {"part": "operator"}),
            ({f'{PLANS}{{pod="a"}}': " ".join("01" * 20)}, {"part": "extender"}),
        ),
    ),
    Case(alert="CodaPlannerSlow", fires=histogram(ROUND, le_1_0=90, le_5_0=100), calm=histogram(ROUND, le_1_0=100)),
    Case(alert="CodaReasonsLate", fires=histogram(REASON, le_10_0=8, le_30_0=10), calm=histogram(REASON, le_10_0=10)),
    Case(
        alert="CodaJobsLeftOut",
        fires={'coda_planner_waiting_jobs{code="Undecidable"}': always(1)},
        calm={
            'coda_planner_waiting_jobs{code="InsufficientGPUs"}': always(99),
            'coda_planner_waiting_jobs{code="Undecidable"}': lately(1),
        },
        labels={"code": "Undecidable"},
    ),
    Case(alert="CodaFilterSlow", fires=histogram(FILTER, le_0_1=95, le_0_5=100), calm=histogram(FILTER, le_0_1=100)),
    Case(
        alert="CodaExtenderErrors",
        fires={
            f'{ANSWERS}{{verb="filter",outcome="ok"}}': growing(90),
            f'{ANSWERS}{{verb="filter",outcome="busy"}}': growing(10),
        },
        calm={
            f'{ANSWERS}{{verb="filter",outcome="ok"}}': growing(90),
            f'{ANSWERS}{{verb="filter",outcome="busy"}}': growing(1),
        },
        labels={"verb": "filter"},
    ),
    Case(
        alert="CodaExtenderUnreached",
        fires={f'{REFUSED}{{reason="no_certificate"}}': growing(2)},
        calm={f'{REFUSED}{{reason="no_certificate"}}': growing(0.3), f'{REFUSED}{{reason="not_http"}}': growing(9)},
        labels={"why": "handshakes fail"},
        fires_also=(
            ({LAUNCHES: growing(1), f"{FILTER}_count": always(7)}, {"why": "there are no calls"}),
            ({f'{KEPT_OUT}_namespaces{{reason="BindDeadlineExceeded"}}': always(2)}, {"why": "there are no calls"}),
        ),
    ),
    Case(
        alert="CodaOperatorAbsent",
        fires={LEADS: always(0)},
        calm={LEADS: f"1x{MINUTES - 3} 0x3"},
    ),
    Case(
        alert="CodaNodeLossSuspended",
        fires={"coda_operator_node_loss_suspended": always(1)},
        calm={"coda_operator_node_loss_suspended": always(0)},
    ),
    Case(
        alert="CodaCertificateEnds",
        fires={
            f'{EXPIRY}{{secret="coda-extender-tls"}}': always(13 * DAY_S),
            f'{EXPIRY}{{secret="b"}}': always(DAY_S * 30),
        },
        calm={f'{EXPIRY}{{secret="coda-extender-tls"}}': always(15 * DAY_S)},
        labels={"secret": "coda-extender-tls"},
        fires_also=(({f'{EXPIRY}{{secret="b"}}': always(0)}, {"secret": "b"}),),  # it cannot be read
    ),
    Case(
        alert="CodaReconcileErrors",
        fires={
            "coda_operator_reconcile_errors_total": growing(2),
            "coda_operator_reconcile_duration_seconds_count": growing(10),
        },
        calm={
            "coda_operator_reconcile_errors_total": growing(0.5),
            "coda_operator_reconcile_duration_seconds_count": growing(10),
        },
    ),
    Case(
        alert="CodaJobsStuck",
        fires={f'{OLDEST}{{phase="New"}}': growing(60)},
        calm={f'{OLDEST}{{phase="New"}}': always(599), f'{OLDEST}{{phase="Restarting"}}': always(4199)},
        labels={"phase": "New"},
        fires_also=(({f'{OLDEST}{{phase="Restarting"}}': growing(120)}, {"phase": "Restarting"}),),
    ),
    Case(
        alert="CodaGangsDoNotStart",
        fires={f'{KEPT_OUT}_jobs{{reason="Unschedulable"}}': always(5)},
        calm={
            f'{KEPT_OUT}_jobs{{reason="Unschedulable"}}': always(9),
            f'{KEPT_OUT}_namespaces{{reason="Unschedulable"}}': always(1),
            f'{KEPT_OUT}_jobs{{reason="BindDeadlineExceeded"}}': always(4),
            f'{KEPT_OUT}_namespaces{{reason="BindDeadlineExceeded"}}': always(4),
            "coda_operator_late_start_jobs": always(4),
            LAUNCHES: growing(0.1),
        },
        labels={"reason": "Unschedulable"},
        fires_also=(
            ({f'{KEPT_OUT}_namespaces{{reason="Unschedulable"}}': always(2)}, {"reason": "Unschedulable"}),
            ({"coda_operator_late_start_jobs": always(5)}, {"reason": "StartDeadlineExceeded"}),
            (
                {
                    f'{KEPT_OUT}_jobs{{reason="BindDeadlineExceeded"}}': always(5),
                    f'{KEPT_OUT}_namespaces{{reason="BindDeadlineExceeded"}}': always(2),
                    LAUNCHES: growing(1),
                },
                {"reason": "BindDeadlineExceeded"},
            ),
        ),
    ),
    Case(
        alert="CodaHistoryAway",
        fires={"coda_operator_history_away": always(1)},
        calm={"coda_operator_history_away": lately(1, 10)},
    ),
    Case(
        alert="CodaHistoryLost",
        fires={'coda_operator_history_dropped_total{reason="Refused"}': lately(1, 5)},
        calm={
            'coda_operator_history_dropped_total{reason="Refused"}': always(7),
            "coda_operator_history_cpu_jobs_refused_total": always(7),
            "coda_operator_history_cpu_jobs_lost": always(7),
        },
        labels={"reason": "Refused"},
        fires_also=(
            ({"coda_operator_history_cpu_jobs_refused_total": lately(1, 5)}, {"reason": "CpuJobsRefused"}),
            ({"coda_operator_history_cpu_jobs_lost": lately(1, 5)}, {"reason": "CpuJobsLost"}),
        ),
    ),
    Case(
        alert="CodaWatchBroken",
        fires={f'coda_watch_in_touch{{resource="pods",{AT}}}': always(0)},
        calm={f'coda_watch_in_touch{{resource="pods",{AT}}}': f"1x{MINUTES - 2} 0x2"},
        labels={"resource": "pods"} | NODE,
    ),
    Case(
        alert="CodaNotScraped",
        fires={f'up{{{OF_AGENT},node="n1"}}': always(0)},
        calm={
            f'up{{{OF_AGENT},node="n1"}}': f"1x{MINUTES - 9} 0x8",
            'up{namespace="coda-system",pod="other"}': always(0),
        },
        labels={"namespace": "coda-system", "pod": "coda-agent-x"},
    ),
    Case(
        alert="CodaObjectsUnreadable",
        fires={'coda_unreadable_objects{resource="pods"}': always(2)},
        calm={'coda_unreadable_objects{resource="pods"}': lately(2, 10)},
        labels={"resource": "pods"},
    ),
    Case(
        alert="CodaAgentOutOfTouch",
        fires={f"coda_agent_pods_age_seconds{{{AT}}}": growing(60)},
        calm={f"coda_agent_pods_age_seconds{{{AT}}}": always(20)},
        labels=NODE,
    ),
    Case(
        alert="CodaAgentSlow",
        fires=histogram(WINDOW, f"{AT},", le_1=40, le_5=50),
        calm=histogram(WINDOW, f"{AT},", le_1=58, le_5=60),
        labels=NODE,
    ),
    Case(
        alert="CodaAgentWritesFail",
        fires={f"coda_agent_failed_writes_total{{{AT}}}": growing(2)},
        calm={f"coda_agent_failed_writes_total{{{AT}}}": growing(0.3)},
        labels=NODE,
    ),
    Case(
        alert="CodaGpuUnmeasured",
        fires={'coda_gpu_healthy{hostname="n1",gpu="0"}': always(0)},
        calm={
            'coda_gpu_healthy{hostname="n1",gpu="0"}': f"1x{MINUTES - 5} 0x5",
            'coda_agent_sensor_up{node="without-gpus",sensor="nvml"}': always(0),
        },
        labels={"hostname": "n1", "gpu": "0"},
        fires_also=(
            (  # the agent's pod was deleted, and the new one still measures nothing
                {
                    'coda_gpu_healthy{hostname="n1",gpu="0",pod="a"}': f"0x{MINUTES - 30} stale",
                    'coda_gpu_healthy{hostname="n1",gpu="0",pod="b"}': f"_x{MINUTES - 28} 0x28",
                },
                {"hostname": "n1", "gpu": "0", "pod": "b"},
            ),
        ),
    ),
)


def test_every_alert_has_a_case() -> None:
    assert [rule["alert"] for rule in alerts()] == [case.alert for case in CASES]


def test_each_alert_fires_when_it_should_and_not_otherwise(tmp_path: Path) -> None:
    severity_by_alert = {rule["alert"]: rule["labels"]["severity"] for rule in alerts()}
    tests = [promtool_test(case.alert, case.calm, None) for case in CASES]
    for case in CASES:
        severity = {"severity": severity_by_alert[case.alert]}
        for series, labels in ((case.fires, case.labels), *case.fires_also):
            tests.append(promtool_test(case.alert, series, labels | severity))
    file = tmp_path / "alerts.test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    ended = subprocess.run([program("promtool"), "test", "rules", file], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def promtool_test(alert: str, series: dict[str, str], labels: dict[str, str] | None) -> Json:
    """Whether the alert fires at the end; None: it does not."""
    shown = {"alertname": alert, "alertstate": "firing"} | (labels or {})
    sample = "ALERTS{" + ",".join(f'{name}="{value}"' for name, value in sorted(shown.items())) + "}"
    firing = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    return {
        "interval": "1m",
        "name": f"{alert} {'fires' if labels else 'is calm'}",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": firing,
                "eval_time": f"{MINUTES}m",
                "exp_samples": [{"labels": sample, "value": 1}] if labels is not None else [],
            }
        ],
    }


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_whom_and_where_to_read_on(rule: Json) -> None:
    name, notes = rule["alert"], rule["annotations"]
    assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    assert notes["summary"].endswith(".")
    assert notes["description"].endswith(".")
    assert notes["runbook_url"] == f"docs/runbooks/{name}.md"
    assert metrics_in(rule["expr"]) <= kinds().keys()
    page = (RUNBOOKS / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n\nSeverity: {rule['labels']['severity']}.\n")
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(SECTIONS)


def test_every_runbook_has_its_alert() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == {rule["alert"] for rule in alerts()}
