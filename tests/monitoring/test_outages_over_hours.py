"""Alerts over the hours of an outage: they fire soon, go on firing while it lasts, and are silent for what is usual."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.monitoring.expressions import ALERTS, program

Series = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Series with a sample a minute, and the minutes at which the alert fires, or does not."""

    name: str
    alert: str
    series: Series
    fires: tuple[int, ...] = ()
    calm: tuple[int, ...] = ()


def values(minutes: int, value: Callable[[int], float]) -> str:
    """One sample for each minute."""
    return " ".join(f"{value(minute):g}" for minute in range(minutes + 1))


def buckets(name: str, minutes: int, counts_by_bound: dict[str, Callable[[int], float]]) -> Series:
    """A histogram with its count."""
    shown = {f'{name}_bucket{{le="{bound}"}}': values(minutes, count) for bound, count in counts_by_bound.items()}
    return shown | {f"{name}_count": shown[f'{name}_bucket{{le="+Inf"}}']}


REASON, ROUND = "coda_planner_first_reason_delay_seconds", "coda_planner_round_duration_seconds"

LATE = (
    Outage(
        name="five new jobs every 20 minutes, all told late",
        alert="CodaReasonsLate",
        series=buckets(
            REASON,
            120,
            {
                "10.0": lambda _: 0,
                "60.0": lambda minute: 5 * ((minute + 15) // 20),
                "+Inf": lambda minute: 5 * ((minute + 15) // 20),
            },
        ),
        fires=(12, 32, 52, 112),
    ),
    Outage(
        name="one job in two hours is told late",
        alert="CodaReasonsLate",
        series=buckets(
            REASON,
            120,
            {"10.0": lambda _: 0, "60.0": lambda minute: minute // 60, "+Inf": lambda minute: minute // 60},
        ),
        calm=(62, 66, 70, 75),
    ),
    Outage(
        name="five slow decisions every 20 minutes",
        alert="CodaPlannerSlow",
        series=buckets(
            ROUND,
            120,
            {
                "1.0": lambda minute: minute,
                "5.0": lambda minute: minute + 5 * ((minute + 15) // 20),
                "+Inf": lambda minute: minute + 5 * ((minute + 15) // 20),
            },
        ),
        fires=(12, 32, 52, 112),
    ),
    Outage(
        name="one slow decision an hour",
        alert="CodaPlannerSlow",
        series=buckets(
            ROUND,
            120,
            {
                "1.0": lambda minute: minute,
                "5.0": lambda minute: minute + minute // 60,
                "+Inf": lambda minute: minute + minute // 60,
            },
        ),
        calm=(62, 66, 70, 75),
    ),
)


def check(outages: Iterable[Outage], folder: Path) -> None:
    """Fails if an alert is not as said."""
    firing = 'clamp_max(count(ALERTS{{alertname="{}",alertstate="firing"}}), 1) or vector(0)'
    tests = [
        {
            "name": outage.name,
            "interval": "1m",
            "input_series": [{"series": name, "values": shown} for name, shown in outage.series.items()],
            "promql_expr_test": [
                {
                    "expr": firing.format(outage.alert),
                    "eval_time": f"{minute}m",
                    "exp_samples": [{"labels": "{}", "value": value}],
                }
                for value, minutes in ((1, outage.fires), (0, outage.calm))
                for minute in minutes
            ],
        }
        for outage in outages
    ]
    file = folder / "outages.test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    ended = subprocess.run([program("promtool"), "test", "rules", file], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_bursts_that_are_late_are_told_and_a_single_one_is_not(tmp_path: Path) -> None:
    check(LATE, tmp_path)
