"""Two scrape jobs that read the same process, such as a PodMonitor and annotations, count once."""

from __future__ import annotations

from pathlib import Path

from tests.monitoring.test_outages_over_hours import BOUND, CALLS, PLANS, REASON, ROUND, STARTED, Outage, Series, check


def twice(series: Series) -> Series:
    """As two scrape jobs see them, both with the same `instance`."""
    jobs = ("coda-system/coda", "kubernetes-pods")
    return {
        f"{name}{{{labels}job={chr(34)}{job}{chr(34)}}}": shown
        for full, shown in series.items()
        for name, labels in [(full.partition("{")[0], f"{full.partition('{')[2].rstrip('}')},".lstrip(","))]
        for job in jobs
    }


AT = 'instance="10.0.0.1:9090"'
ANNOTATIONS_REFUSED = {
    f'up{{{AT},namespace="coda-system",pod="coda-operator-x",job="coda-system/coda"}}': "1x60",
    f'up{{{AT},namespace="coda-system",pod="coda-operator-x",job="kubernetes-pods"}}': "0x60",
}
BELOW = {
    "CodaRestarts": {f"{STARTED}{{{AT}}}": "1x10 2x10 3x40", f"{PLANS}{{{AT}}}": "1x60"},
    "CodaPlannerProcessLost": {f'coda_planner_processes_lost_total{{{AT},cause="died"}}': "0x10 1x50"},
    "CodaPlannerSlow": {
        f'{ROUND}_bucket{{{AT},le="1.0"}}': "0x60",
        f'{ROUND}_bucket{{{AT},le="5.0"}}': "0x19 2x40",
        f'{ROUND}_bucket{{{AT},le="+Inf"}}': "0x19 2x40",
        f"{ROUND}_count{{{AT}}}": "0x19 2x40",
    },
    "CodaReasonsLate": {
        f'{REASON}_bucket{{{AT},le="10.0"}}': "0x60",
        f'{REASON}_bucket{{{AT},le="60.0"}}': "0x19 2x40",
        f'{REASON}_bucket{{{AT},le="+Inf"}}': "0x19 2x40",
        f"{REASON}_count{{{AT}}}": "0x19 2x40",
    },
    "CodaExtenderUnreached": {f"{BOUND}{{{AT}}}": "0x10 4x50", f"{CALLS}{{{AT}}}": "0x60"},
    "CodaAgentWritesFail": {f'coda_agent_failed_writes_total{{{AT},node="n1",pod="a"}}': "0x15 8x45"},
}


def test_what_two_scrape_jobs_read_counts_once(tmp_path: Path) -> None:
    check(
        [
            Outage(name="one is refused", alert="CodaNotScraped", series=ANNOTATIONS_REFUSED, calm=(15, 30, 60)),
            *(
                Outage(name=alert, alert=alert, series=twice(series), calm=(22, 24, 28, 35))
                for alert, series in BELOW.items()
            ),
        ],
        tmp_path,
    )
