"""What measuring a full node costs the driver: 60 pods on two sockets, once a second."""

import os
from pathlib import Path

import pytest

from coda_agent.host.files import Files
from coda_agent.resctrl.counters import TrafficMeter
from coda_agent.resctrl.groups import Groups

PODS, WINDOWS = 60, 5


def counters(group: Path) -> None:
    for domain in ("00", "01"):
        directory = group / f"mon_data/mon_L3_{domain}"
        directory.mkdir(parents=True)
        (directory / "mbm_total_bytes").write_text("123456789012\n")


def test_a_window_opens_each_counter_once_and_little_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain files in place of the kernel's. What the whole agent costs is measured by `benchmarks/agent_cost.py`."""
    tids = {f"pod-{number}": frozenset(range(1 + 40 * number, 41 + 40 * number)) for number in range(PODS)}
    places = ("", "coda-throttle", *(f"mon_groups/coda-{uid}" for uid in tids))
    for group in places:
        counters(tmp_path / group)
        (tmp_path / group / "tasks").touch()
    files = Files(proc=tmp_path / "none", resctrl=tmp_path)
    groups, meter = Groups(files), TrafficMeter(files, (0, 1))
    for uid, threads in tids.items():
        groups.collect_threads(uid, lambda threads=threads: threads)  # type: ignore[misc]
    meter.sample(0)

    opened: list[str] = []
    really_open = os.open

    def noted(path: str, flags: int, *rest: int, **more: int) -> int:
        opened.append(os.path.relpath(path, tmp_path))
        return really_open(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", noted)
    for window in range(1, WINDOWS + 1):
        assert len(meter.sample(window).by_pod) == PODS
        assert len(groups.grouped_pods().free) == PODS
        for uid, threads in tids.items():
            groups.collect_threads(uid, lambda threads=threads: threads)  # type: ignore[misc]
    wanted = {
        f"{group}/mon_data/mon_L3_{domain}/mbm_total_bytes".lstrip("/") for group in places for domain in ("00", "01")
    }
    assert set(opened) >= wanted
    assert len(opened) <= WINDOWS * (len(wanted) + 4)
