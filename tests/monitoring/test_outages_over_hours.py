"""Alerts over the hours of an outage: they fire soon, go on firing while it lasts, and are silent for what is usual."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from coda.lifecycle import LifecycleConfig, Progress, RankPod, Situation
from coda.lifecycle.failures import START_DEADLINE, Failure, bind_deadline_missed
from coda.lifecycle.retry import roll_back
from coda.lifecycle.state import Terms
from coda.model import Phase
from coda_operator.metrics import KEPT_OUT_FROM, LATE_FOR_S
from tests.monitoring.expressions import Json, alerts, program

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


def check(outages: Collection[Outage], folder: Path) -> None:
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
    rules = folder / "asked.yaml"  # without all others, which promtool would evaluate as well in each minute
    rules.write_text(yaml.safe_dump(only({outage.alert for outage in outages})))
    file = folder / "outages.test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    ended = subprocess.run([program("promtool"), "test", "rules", file], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def only(asked: set[str]) -> Json:
    """The chart's groups with these alerts alone."""
    found = [rule for rule in alerts() if rule["alert"] in asked]
    assert {rule["alert"] for rule in found} == asked
    return {"groups": [{"name": "asked", "rules": found}]}


def test_bursts_that_are_late_are_told_and_a_single_one_is_not(tmp_path: Path) -> None:
    check(LATE, tmp_path)


HOURS = 12
ENDED = "coda_operator_attempts_ended_total"
KEPT_OUT, WHERE = "coda_operator_kept_out_jobs", "coda_operator_kept_out_namespaces"
LATE_JOBS = "coda_operator_late_start_jobs"
BOUND = "coda_operator_launch_duration_seconds_count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """When the attempts of each gang ended, and between which times gangs backed off after many, in seconds."""

    ends_s: list[list[float]]
    kept_out_s: list[tuple[float, float]]


def attempts_of(gangs: int, *, own: bool, deadline_s: float | None = None) -> Attempts:
    """By the real life cycle: no gang is ever bound; `own`: or none ever starts, which counts as its own fault."""
    ends_s, kept_out_s = [list[float]() for _ in range(gangs)], list[tuple[float, float]]()
    lasts_s = deadline_s or (1800.0 if own else 60.0)
    for gang in range(gangs):
        now_s, progress = float(gang), Progress(phase=Phase.QUEUED, attempt=1)
        while now_s < HOURS * 3600:
            now_s += lasts_s
            pods = (RankPod(name="j-1-0", uid="u", attempt=progress.attempt, rank=0),)
            phase = Phase.STARTING if own else Phase.LAUNCHED
            launched = replace(progress, phase=phase, launch_s=now_s - lasts_s)
            now = Situation(terms=Terms(replicas=1, retries=500), generation=1, progress=launched, pods=pods)
            missed = Failure(own=True, reason=START_DEADLINE, message="") if own else bind_deadline_missed(pods, 1, 0)
            progress = roll_back(now, missed, now_s, LifecycleConfig()).progress
            ends_s[gang].append(now_s)
            if progress.in_a_row >= KEPT_OUT_FROM:
                kept_out_s.append((now_s, progress.not_before_s))
            now_s, progress = progress.not_before_s, replace(progress, attempt=progress.attempt + 1)
    return Attempts(ends_s=ends_s, kept_out_s=kept_out_s)


def gangs_do_not_start(
    name: str, attempts: Attempts, reason: str, *, namespaces: int = 1, bound: int = 0, **when: tuple[int, ...]
) -> Outage:
    """`bound`: other gangs are bound, one each so many minutes."""

    def kept_out(minute: int) -> int:
        return sum(begin_s <= 60 * minute < end_s for begin_s, end_s in attempts.kept_out_s)

    def late(minute: int) -> int:
        since_s = 60 * minute - LATE_FOR_S
        return sum(any(since_s < end_s <= 60 * minute for end_s in ends_s) for ends_s in attempts.ends_s)

    def ended(minute: int) -> int:
        return sum(end_s <= 60 * minute for ends_s in attempts.ends_s for end_s in ends_s)

    last = HOURS * 60
    series = {
        f'{ENDED}{{reason="{reason}"}}': values(last, ended),
        f'{KEPT_OUT}{{reason="{reason}"}}': values(last, kept_out),
        f'{WHERE}{{reason="{reason}"}}': values(last, lambda minute: min(namespaces, kept_out(minute))),
        LATE_JOBS: values(last, late if reason == START_DEADLINE else lambda _: 0),
        BOUND: values(last, lambda minute: (minute + bound - 1) // bound if bound else 0),
    }
    return Outage(name=name, alert="CodaGangsDoNotStart", series=series, **when)


ALL_NIGHT = (20, 45, 60, 90, 120, 180, 240, 360, 480, 600, 700)
LATER = (120, 180, 240, 360, 480, 600, 700)
NEVER = (*range(10, 60, 5), *range(60, 720, 45))
TOO_LATE, UNBOUND, REFUSED_NODE = START_DEADLINE, "BindDeadlineExceeded", "Unschedulable"


def test_gangs_that_do_not_start_are_told_all_night(tmp_path: Path) -> None:
    two, five, ten = attempts_of(2, own=False), attempts_of(5, own=False), attempts_of(10, own=False)
    five_start_late = attempts_of(5, own=True)
    check(
        (
            gangs_do_not_start("two teams, and no kube-scheduler", two, UNBOUND, namespaces=2, fires=ALL_NIGHT),
            gangs_do_not_start("five of one team", five, UNBOUND, fires=ALL_NIGHT),
            gangs_do_not_start("ten of one team", ten, UNBOUND, fires=ALL_NIGHT),
            gangs_do_not_start("ten of several teams", ten, REFUSED_NODE, namespaces=2, bound=5, fires=ALL_NIGHT),
            gangs_do_not_start("five that do not start", five_start_late, TOO_LATE, bound=5, fires=LATER),
        ),
        tmp_path,
    )


def test_broken_jobs_of_users_are_not_told_where_others_start_nor_one_alone(tmp_path: Path) -> None:
    one, two, ten = attempts_of(1, own=False), attempts_of(2, own=False), attempts_of(10, own=False)
    late, soon_late = attempts_of(1, own=True), attempts_of(1, own=True, deadline_s=60.0)
    check(
        (
            gangs_do_not_start("one volume", one, REFUSED_NODE, bound=5, calm=NEVER),
            gangs_do_not_start("one volume on a quiet cluster", one, REFUSED_NODE, calm=NEVER),
            gangs_do_not_start("one gate", one, UNBOUND, bound=5, calm=NEVER),
            gangs_do_not_start("one gate on a quiet cluster", one, UNBOUND, calm=NEVER),
            gangs_do_not_start("two users with a volume each", two, REFUSED_NODE, namespaces=2, bound=20, calm=NEVER),
            gangs_do_not_start("ten jobs with one volume", ten, REFUSED_NODE, bound=5, calm=NEVER),
            gangs_do_not_start("one image", late, TOO_LATE, calm=NEVER),
            gangs_do_not_start("one image, and a deadline of a minute", soon_late, TOO_LATE, bound=5, calm=NEVER),
        ),
        tmp_path,
    )


CALLS = "coda_extender_filter_duration_seconds_count"
REFUSED = 'coda_extender_refused_requests_total{reason="no_certificate"}'
UNBOUND_WHERE = f'{WHERE}{{reason="{UNBOUND}"}}'
RELEASES = "coda_planner_releases_total"


def until(last_call: int) -> str:
    """Ten filter calls a minute until this one."""
    return values(240, lambda minute: 10 * min(minute, last_call))


def unreached(name: str, more: Series, *, last_call: int = 0, **when: tuple[int, ...]) -> Outage:
    series = {CALLS: until(last_call), REFUSED: values(240, lambda _: 3), BOUND: values(240, lambda _: 0)}
    return Outage(name=name, alert="CodaExtenderUnreached", series=series | more, **when)


UNREACHED = (
    unreached(
        "its authority is the old one, and there are no gangs",
        {REFUSED: values(240, lambda minute: 60 * max(0, minute - 30))},
        last_call=30,
        calm=(10, 30),
        fires=(45, 60, 180, 240),
    ),
    unreached(
        "no packet arrives, and it goes on without Coda",
        {BOUND: values(240, lambda minute: minute)},
        last_call=30,
        calm=(10, 30, 50),
        fires=(75, 120, 180, 240),
    ),
    unreached(
        "no packet arrives, and nothing is bound",
        {UNBOUND_WHERE: values(240, lambda minute: 2 if minute > 37 else 0), BOUND: values(240, lambda m: min(m, 30))},
        last_call=30,
        calm=(10, 30, 50),
        fires=(75, 120, 180, 240),
    ),
    unreached(
        "a quiet night, and a busy day",
        {BOUND: values(240, lambda minute: min(minute, 119))},
        last_call=120,
        calm=(60, 120, 150, 170, 240),
    ),
    unreached(
        "a quiet cluster, and one user whose volume does not exist",
        {
            RELEASES: values(240, lambda m: sum(s - 60 <= 60 * m for s in attempts_of(1, own=False).ends_s[0])),
            f'{WHERE}{{reason="{REFUSED_NODE}"}}': values(240, lambda _: 1),
        },
        calm=(10, 25, 30, 45, 120),
    ),
    unreached(
        "the operator is dead, and nobody makes the pods of seven placed jobs",
        {RELEASES: values(240, lambda minute: 7 if minute > 10 else 0)},
        calm=(10, 25, 30, 45, 120),
    ),
)


def test_an_extender_that_nobody_reaches_is_told(tmp_path: Path) -> None:
    check(UNREACHED, tmp_path)


STARTED, PLANS = "process_start_time_seconds", "coda_planner_is_leader"


def replica(pod: str, started: str, leads: str) -> Series:
    labels = f'{{instance="{pod}",pod="{pod}"}}'
    return {f"{STARTED}{labels}": started, f"{PLANS}{labels}": leads}


def killed_in_turn(kills_every: int) -> Series:
    """Two replicas; whoever leads is killed as a whole after so many minutes, away for one, and the other leads."""
    shown: dict[str, tuple[list[str], list[str]]] = {"a": ([], []), "b": ([], [])}
    begun = {"a": 0, "b": 0}
    for minute in range(241):
        leader, other = ("a", "b") if minute // kills_every % 2 == 0 else ("b", "a")
        if minute and minute % kills_every == 0:
            begun[other] = minute
        is_gone = minute >= kills_every and minute % kills_every == 0
        for pod, leads in ((leader, "1"), (other, "0")):
            hidden = is_gone and pod == other
            shown[pod][0].append("_" if hidden else f"{begun[pod]}")
            shown[pod][1].append("_" if hidden else leads)
    made = [replica(pod, " ".join(started), " ".join(leads)) for pod, (started, leads) in shown.items()]
    return made[0] | made[1]


UPGRADE = (
    replica("old-a", "1x60 _x180", "1x60 _x180")
    | replica("old-b", "1x62 _x178", "0x60 1x1 _x178")
    | replica("new-a", "_x58 2x182", "_x58 0x4 1x178")
    | replica("new-b", "_x61 2x179", "_x61 0x179")
)
AND_BACK = (
    UPGRADE
    | replica("new-a", "_x58 2x22 _x160", "_x58 0x4 1x18 _x160")
    | replica("new-b", "_x61 2x20 _x158", "_x61 0x19 1x1 _x158")
    | replica("older-a", "_x78 3x162", "_x78 0x3 1x159")
    | replica("older-b", "_x80 3x160", "_x80 0x160")
)
RESTARTS = (
    Outage(name="every two minutes", alert="CodaRestarts", series=killed_in_turn(2), fires=(20, 38, 60, 120, 240)),
    Outage(name="every ten minutes", alert="CodaRestarts", series=killed_in_turn(10), fires=(70, 120, 240)),
    Outage(name="once in an hour", alert="CodaRestarts", series=killed_in_turn(60), calm=(70, 130, 240)),
    Outage(name="a rolling upgrade", alert="CodaRestarts", series=UPGRADE, calm=(59, 61, 63, 70, 120)),
    Outage(name="an upgrade and back", alert="CodaRestarts", series=AND_BACK, calm=(63, 79, 81, 90, 120)),
)


def test_replicas_that_are_killed_in_turn_are_told_and_an_upgrade_is_not(tmp_path: Path) -> None:
    check(RESTARTS, tmp_path)


AGENT = '{instance="n1:9092",namespace="coda-system",pod="coda-agent-x",node="n1"}'
TOUCH, UP = f"coda_agent_pods_age_seconds{AGENT}", f"up{AGENT}"
CUT_OFF = {TOUCH: "0x9 0+60x59 _x180", UP: "1x69 0x180"}  # from minute 10 on; after an hour it answers 503
GONE = {TOUCH: "0x69 stale", UP: "1x69 stale"}  # with its node


def test_an_agent_that_is_cut_off_is_told_for_as_long_as_that_lasts(tmp_path: Path) -> None:
    check(
        (
            Outage(name="at first", alert="CodaAgentOutOfTouch", series=CUT_OFF, calm=(9,), fires=(25, 60)),
            Outage(name="after an hour", alert="CodaNotScraped", series=CUT_OFF, calm=(9, 60), fires=(81, 90, 200)),
            Outage(name="its node was removed", alert="CodaNotScraped", series=GONE, calm=(60, 81, 90, 200)),
        ),
        tmp_path,
    )
