"""Who reads the standard output of a replay may leave, and the disk may be full: one of the two gets the result."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from coda_cli.__main__ import command_line
from coda_cli.replay.command import write_and_show
from tests.cli.replay.test_metrics import summary
from tests.cli.worlds import followed

SMALL = Path(__file__).parents[3] / "examples" / "traces" / "small.csv"


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), text)


def test_the_file_is_written_where_nobody_reads_what_is_printed(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with pytest.raises(OSError, match="Input/output error"):
        write_and_show(summary(followed("a")), out, Console(file=Gone()))
    assert json.loads(out.read_bytes())["outcomes"]["finished"] == 1


def test_what_cannot_be_written_is_printed(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=140)
    with pytest.raises(FileNotFoundError):
        write_and_show(summary(followed("a")), tmp_path / "gone" / "out.json", console)
    assert isinstance(console.file, io.StringIO)
    assert "finished" in console.file.getvalue()


def test_a_replay_that_fails_leaves_no_file(tmp_path: Path) -> None:
    out, nowhere = tmp_path / "out.json", tmp_path / "kubeconfig"
    words = ["replay", str(SMALL), "--kubeconfig", str(nowhere), "--out", str(out)]
    result = CliRunner().invoke(command_line(), words)
    assert (result.exit_code, "kubeconfig" in result.stderr) == (2, True)
    assert not out.exists()
