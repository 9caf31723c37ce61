"""A run that fails leaves no summary.json that nobody wrote, and an older one as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import coda_cli.simulate.command
import coda_cli.simulate.sharing
from coda_cli.__main__ import command_line
from coda_cli.out_files import check_writable, write_whole

SMALL = Path(__file__).parents[3] / "examples" / "traces" / "small.csv"
TRACE = ("--trace", str(SMALL), "--cluster", "4x8x48", "--policy", "arrival")
SHARING = ("--sharing", "serial", "--workload", "job-sets")


class RunFailed(Exception):
    pass


def simulated(words: tuple[str, ...], out: Path) -> Result:
    return CliRunner().invoke(command_line(), ["simulate", *words, "--out", str(out)])


def fails(*_: object) -> None:
    raise RunFailed


@pytest.mark.parametrize("words", [TRACE, SHARING], ids=["a trace", "sharing"])
def test_a_run_that_fails_leaves_no_summary(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coda_cli.simulate.command, "performed", fails)
    monkeypatch.setattr(coda_cli.simulate.sharing, "run_sharing", fails)
    assert isinstance(simulated(words, tmp_path).exception, RunFailed)
    assert list(tmp_path.iterdir()) == []
    older = tmp_path / "summary.json"
    older.write_text("{}")
    assert isinstance(simulated(words, tmp_path).exception, RunFailed)
    assert older.read_text() == "{}"


@pytest.mark.parametrize("words", [TRACE, SHARING], ids=["a trace", "sharing"])
def test_what_cannot_be_written_is_said_before_anything_runs(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "summary.json").mkdir()
    result = simulated(words, tmp_path)
    assert result.exit_code == 2
    assert f"--out {tmp_path}: cannot be written: Is a directory" in result.stderr


def test_a_file_that_cannot_be_written_whole_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_whole(path, b"old")

    def half(written: Path, content: bytes) -> int:
        with written.open("wb") as file:
            file.write(content[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert [one.name for one in tmp_path.iterdir()] == ["summary.json"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("is_link", [False, True], ids=["a pipe", "a link"])
def test_what_is_no_plain_file_is_written_in_place(is_link: bool, tmp_path: Path) -> None:
    """Else /dev/stdout would be replaced by a file."""
    out, target = tmp_path / "out", tmp_path / "target"
    if is_link:
        out.symlink_to(target)
        write_whole(out, b"new")
        assert target.read_bytes() == b"new"
    else:
        os.mkfifo(out)
        check_writable(out)
        reader = os.open(out, os.O_RDONLY | os.O_NONBLOCK)
        write_whole(out, b"new")
        assert os.read(reader, 9) == b"new"
        os.close(reader)
    assert out.is_symlink() or out.is_fifo()
    check_writable(out)


def test_what_can_be_written_is_as_it_was_after_the_check(tmp_path: Path) -> None:
    older = tmp_path / "out"
    older.write_text("old")
    check_writable(older)
    check_writable(tmp_path / "new")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("out", "old")]
