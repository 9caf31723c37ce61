"""The agent's file access."""

import errno
import os
from pathlib import Path

import pytest

from coda_agent.host.files import Files, Tree
from tests.emulated import refusal


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "sub").mkdir()
    return Tree(tmp_path)


def test_reads_what_is_there_even_if_it_is_no_text(tree: Tree) -> None:
    (tree.path / "f").write_bytes(b"a\xff\x00b\n")
    assert tree.read_text("f") == "a�\0b\n"


def test_a_file_longer_than_allowed_is_refused_without_reading_it_whole(tree: Tree) -> None:
    with (tree.path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert refusal(tree.read_text, "huge") == "EFBIG"
    (tree.path / "f").write_text("12345")
    assert tree.read_text("f", most_bytes=5) == "12345"
    with pytest.raises(OSError, match="longer than 4 bytes"):
        tree.read_text("f", most_bytes=4)


def test_a_pipe_in_a_files_place_does_not_hang(tree: Tree) -> None:
    os.mkfifo(tree.path / "pipe")
    assert tree.read_text("pipe") == ""
    assert refusal(tree.write, "pipe", "x") == "ENXIO"


@pytest.mark.parametrize(("text", "number"), [("10\n", 10), ("-1\n", -1), (" 7 ", 7)])
def test_reads_a_number(tree: Tree, text: str, number: int) -> None:
    (tree.path / "n").write_text(text)
    assert tree.read_int("n") == number


@pytest.mark.parametrize("text", ["", "max", "1 2", "1.5", "0x10", "--1", "٣", "1_0", "9" * 5000])
def test_what_is_no_number_is_said_so(tree: Tree, text: str) -> None:
    (tree.path / "n").write_text(text)
    assert refusal(tree.read_int, "n") in {"EBADMSG", "EFBIG"}


def test_writes_by_one_call_and_creates_nothing(tree: Tree) -> None:
    assert refusal(tree.write, "new", "x") == "ENOENT"
    (tree.path / "f").write_text("12345")
    tree.write("f", "ab")
    assert tree.read_text("f") == "ab345"


@pytest.mark.parametrize("path", ["../x", "sub/../../x", "/etc/passwd", "a\0b", ".."])
def test_a_path_out_of_the_root_is_refused(tree: Tree, path: str) -> None:
    operations = (tree.read_text, tree.listdir, tree.mkdir, tree.rmdir, tree.exists)
    assert {refusal(operation, path) for operation in operations} == {"EINVAL"}
    assert refusal(tree.rename, "sub", path) == refusal(tree.write, path, "x") == "EINVAL"


def test_errors_are_the_kernels(tree: Tree) -> None:
    assert refusal(tree.mkdir, "sub") == "EEXIST"
    assert refusal(tree.rmdir, "none") == "ENOENT"
    assert refusal(tree.listdir, "none") == "ENOENT"
    (tree.path / "f").touch()
    assert not tree.exists("f/below")
    assert tree.exists("f")


def test_a_lock_is_not_waited_for(tree: Tree) -> None:
    with tree.locked("sub"):
        with pytest.raises(BlockingIOError) as caught, tree.locked("sub"):
            pytest.fail("locked twice")
        assert caught.value.errno == errno.EWOULDBLOCK
    with tree.locked("sub"):
        pass


def test_the_roots_are_where_they_were_told(tmp_path: Path) -> None:
    files = Files(resctrl=tmp_path)
    assert (files.resctrl.path, files.proc.path) == (tmp_path, Path("/proc"))
