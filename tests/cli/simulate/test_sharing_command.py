"""`coda simulate --sharing`: it answers, writes what it says, and refuses what would have no effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coda_cli.__main__ import command_line


def test_it_compares_policies_and_writes_the_same_bytes_again(tmp_path: Path) -> None:
    command = [
        "simulate",
        "--sharing",
        "serial",
        "--sharing",
        "xonar",
        "--workload",
        "job-sets",
        "--out",
        str(tmp_path),
    ]
    first = CliRunner().invoke(command_line(), command)
    assert first.exit_code == 0, first.output
    written = (tmp_path / "summary.json").read_bytes()
    assert CliRunner().invoke(command_line(), command).exit_code == 0
    assert (tmp_path / "summary.json").read_bytes() == written
    runs = json.loads(written)["runs"]
    assert [run["policy"] for run in runs] == ["serial", "xonar"]
    assert runs[1]["metrics"]["jct_mean_s"] < runs[0]["metrics"]["jct_mean_s"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--policy", "coda"], "--policy has no effect with --sharing"),
        (["--profiles", "steep"], "--profiles has no effect with --sharing"),
        (["--workload", "month"], "--workload month: with --sharing it is gpu-trace or job-sets"),
        (["--without", "arrays"], "--without arrays: with --sharing the parts are"),
    ],
)
def test_what_has_no_effect_is_refused(options: list[str], sentence: str) -> None:
    result = CliRunner().invoke(command_line(), ["simulate", "--sharing", "antman", *options])
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())
