"""Fetching Prometheus, with small scripts in the place of apt-get and dpkg-deb."""

from __future__ import annotations

from pathlib import Path

import pytest

from coda_lab.host.errors import LabFailure
from coda_lab.host.paths import Settings
from coda_lab.programs import prometheus

DOWNLOADS = 'echo "$*" >>"$CALLS"; [ "$1" = download ] && : >prometheus_1_all.deb'
UNPACKS = 'mkdir -p "$3/usr/bin" && : >"$3/usr/bin/prometheus" && : >"$3/usr/bin/promtool"'


def script(path: Path, body: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def settings(folder: Path) -> Settings:
    environ = {"PATH": f"{folder / 'bin'}:/bin:/usr/bin", "CALLS": str(folder / "calls")}
    return Settings(cache=folder / "cache", ready_made=None, environ=environ)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Has none of the programs; its apt-get and dpkg-deb are scripts."""
    script(tmp_path / "bin" / "apt-get", DOWNLOADS)
    script(tmp_path / "bin" / "dpkg-deb", UNPACKS)
    found = settings(tmp_path)
    monkeypatch.setenv("PATH", found.environ["PATH"])  # by which subprocess finds them
    return found


def test_is_fetched_once_and_then_found(machine: Settings, tmp_path: Path) -> None:
    if prometheus.find(machine) is not None:
        pytest.skip("this machine has Prometheus installed")
    folder = prometheus.ensure(machine)
    assert {path.name for path in folder.iterdir()} == {"prometheus", "promtool"}
    assert prometheus.ensure(machine) == prometheus.find(machine) == folder == machine.cache / "prometheus"
    assert (tmp_path / "calls").read_text() == "download -qq prometheus\n"


def test_the_machine_s_own_is_taken(machine: Settings, tmp_path: Path) -> None:
    for name in ("prometheus", "promtool"):
        script(tmp_path / "bin" / name, "exit 0")
    assert prometheus.ensure(machine) == tmp_path / "bin"


def test_a_machine_that_cannot_fetch_it_is_told_in_one_sentence(machine: Settings, tmp_path: Path) -> None:
    if prometheus.find(machine) is not None:
        pytest.skip("this machine has Prometheus installed")
    script(tmp_path / "bin" / "apt-get", "exit 100")
    with pytest.raises(LabFailure, match=r"prometheus could not be fetched as Debian's package"):
        prometheus.ensure(machine)
    assert prometheus.find(machine) is None
