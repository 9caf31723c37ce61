"""The program itself, as far as it goes without a cluster: one sentence and exit code 2 for what no retry will mend."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: none}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CODA_")}
    return subprocess.run(
        [sys.executable, "-m", "coda_extender"], env=ours | environment, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    return str(path)


def test_a_bad_setting_is_named() -> None:
    result = run(CODA_PORT="many")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "CODA_PORT" in result.stderr


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    result = run(CODA_KUBECONFIG=str(tmp_path / "none"))
    assert result.returncode == 2
    assert str(tmp_path / "none") in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_a_port_in_use_is_named(kubeconfig: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run(CODA_KUBECONFIG=kubeconfig, CODA_PORT=str(port))
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(f"coda_extender: cannot listen on 127.0.0.1:{port}: ")
    assert "Traceback" not in result.stderr
