"""Helm for the chart's tests, with a small script in the place of Go."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coda_lab.host import paths
from coda_lab.programs import helm
from tests.lab.programs.test_control_plane import GO_THAT_BUILDS, go_script, settings


def test_builds_the_pinned_version_once_and_then_finds_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    go_script(tmp_path / "bin", GO_THAT_BUILDS)

    first = helm.ensure_shown(settings(tmp_path))
    told = capfd.readouterr().err
    second = helm.ensure_shown(settings(tmp_path))

    assert first == second
    pinned = re.search(r"helm\.sh/helm/v3 (v\S+)", (paths.helm_module() / "go.mod").read_text())
    assert pinned is not None
    assert first.parent.name.startswith(f"{pinned[1]}-")
    assert first.parent.parent == tmp_path / "cache" / "helm"
    assert told.startswith("Building Helm: once per machine")
    assert capfd.readouterr().err == ""
    (built,) = (tmp_path / "count").read_text().splitlines()
    assert built.startswith(f"{paths.helm_module()} 0 local build ")
    assert built.endswith(" helm.sh/helm/v3/cmd/helm")
    assert f"-X helm.sh/helm/v3/internal/version.version={pinned[1]} " in built


def test_a_build_that_fails_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go_script(tmp_path / "bin", "echo 'no such module' >&2; exit 1")
    for name, value in settings(tmp_path).environ.items():
        monkeypatch.setenv(name, value)
    assert helm.main() == 1
    assert "\nBuilding Helm failed. Its log is " in f"\n{capsys.readouterr().err}"
