"""The operator's settings: the environment, read once; what is wrong is named in one sentence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coda.errors import InvalidInput
from coda_operator.settings import read_settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CODA_")]:
        monkeypatch.delenv(name)


def test_defaults_need_nothing() -> None:
    settings = read_settings()
    assert (settings.metrics_port, settings.lease_times().duration_s) == (9090, 10.0)
    assert (settings.lifecycle().node_loss_s, settings.lifecycle().failure_backoff_s) == (60.0, 10.0)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("CODA_METRICS_PORT", "abc", "CODA_METRICS_PORT: Input should be a valid integer"),
        ("CODA_METRICS_PORT", "70000", "CODA_METRICS_PORT"),
        ("CODA_LOG_LEVEL", "loud", "CODA_LOG_LEVEL"),
        ("CODA_LEASE_RENEW_DEADLINE_S", "11", "renew deadline < duration"),
        ("CODA_HISTORY_DAYS", "7", "CODA_HISTORY_DAYS: .*0 or at least 14"),
        ("CODA_WRITES_IN_FLIGHT", "0", "CODA_WRITES_IN_FLIGHT"),
    ],
)
def test_bad_values_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str, word: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=word):
        read_settings()


def start(**environ: str) -> subprocess.CompletedProcess[str]:
    """The operator's process until it ends, which it does at once."""
    command = [sys.executable, "-m", "coda_operator"]
    return subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False
    )


def last_line(ended: subprocess.CompletedProcess[str]) -> str:
    return ended.stderr.strip().splitlines()[-1]


def test_a_process_that_cannot_run_says_why_in_one_sentence(tmp_path: Path) -> None:
    bad = start(CODA_LOG_LEVEL="loud")
    assert (bad.returncode, len(bad.stderr.splitlines())) == (1, 1)
    lost = start(CODA_KUBECONFIG=str(tmp_path / "nowhere.yaml"))
    assert lost.returncode == 1
    assert last_line(lost).startswith("coda-operator: no cluster to talk to: ")


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config.yaml"
    kubeconfig.write_text(KUBECONFIG)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = start(CODA_KUBECONFIG=str(kubeconfig), CODA_HOST="127.0.0.1", CODA_METRICS_PORT=str(port))
    assert ended.returncode == 1
    assert last_line(ended).startswith(f"coda-operator: cannot listen on 127.0.0.1:{port}")


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""
