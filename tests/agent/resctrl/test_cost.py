"""What measuring a full node costs the driver: 60 pods on two sockets, once a second."""

import time
from pathlib import Path

from coda_agent.host.files import Files
from coda_agent.resctrl.counters import TrafficMeter
from coda_agent.resctrl.groups import Groups

PODS, WINDOWS = 60, 50


def counters(group: Path) -> None:
    for domain in ("00", "01"):
        directory = group / f"mon_data/mon_L3_{domain}"
        directory.mkdir(parents=True)
        (directory / "mbm_total_bytes").write_text("123456789012\n")


def test_a_window_costs_less_than_half_a_percent_of_a_core(tmp_path: Path) -> None:
    """Plain files in place of the kernel's: what is measured is the driver itself, about 1 ms."""
    tids = {f"pod-{number}": frozenset(range(1 + 40 * number, 41 + 40 * number)) for number in range(PODS)}
    for group in ("", "coda-throttle", *(f"mon_groups/coda-{uid}" for uid in tids)):
        counters(tmp_path / group)
        (tmp_path / group / "tasks").touch()
    files = Files(proc=tmp_path / "none", resctrl=tmp_path)
    groups, meter = Groups(files), TrafficMeter(files, (0, 1))
    for uid, threads in tids.items():
        groups.collect_threads(uid, lambda threads=threads: threads)  # type: ignore[misc]
    meter.sample(0)

    began_s = time.process_time()
    for window in range(1, WINDOWS + 1):
        assert len(meter.sample(window).by_pod) == PODS
        assert len(groups.grouped_pods().free) == PODS
        for uid, threads in tids.items():
            groups.collect_threads(uid, lambda threads=threads: threads)  # type: ignore[misc]
    assert (time.process_time() - began_s) / WINDOWS < 0.005
