"""Etcd's first state is kept once for the same programs and files, and only the newest ones are."""

from __future__ import annotations

from pathlib import Path

import pytest

from coda_lab.host.errors import LabFailure
from coda_lab.local.first_state import FirstState


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "kube"
    path.write_text("a program")
    return path


def state(tmp_path: Path, program: Path, *, text: str = "kind: A", more: str = "") -> FirstState:
    file = tmp_path / "definition.yaml"
    file.write_text(text)
    return FirstState(tmp_path / "cache", [program], [file], more)


def data_folder(tmp_path: Path, content: str) -> Path:
    folder = tmp_path / f"etcd-{content}"
    (folder / "member" / "wal").mkdir(parents=True)
    (folder / "member" / "wal" / "0.wal").write_text(content)
    return folder


def content_of(state: FirstState, target: Path) -> str | None:
    return (target / "member" / "wal" / "0.wal").read_text() if state.copy_to(target) else None


def test_what_was_kept_is_copied(tmp_path: Path, program: Path) -> None:
    assert content_of(state(tmp_path, program), tmp_path / "none") is None
    state(tmp_path, program).keep(data_folder(tmp_path, "first"))
    assert content_of(state(tmp_path, program), tmp_path / "copy") == "first"


def test_other_programs_files_or_roles_have_a_state_of_their_own(tmp_path: Path, program: Path) -> None:
    state(tmp_path, program).keep(data_folder(tmp_path, "first"))
    assert content_of(state(tmp_path, program, text="kind: B"), tmp_path / "a") is None
    assert content_of(state(tmp_path, program, more="roles"), tmp_path / "b") is None
    program.write_text("another program")
    assert content_of(state(tmp_path, program), tmp_path / "c") is None


def test_an_interrupted_copy_counts_for_nothing(tmp_path: Path, program: Path) -> None:
    state(tmp_path, program).keep(data_folder(tmp_path, "first"))
    (kept,) = (tmp_path / "cache" / "first-state").iterdir()
    kept.rename(kept.with_suffix(".unfinished"))
    assert content_of(state(tmp_path, program), tmp_path / "none") is None
    state(tmp_path, program).keep(data_folder(tmp_path, "second"))
    assert content_of(state(tmp_path, program), tmp_path / "copy") == "second"


def test_the_two_newest_are_kept(tmp_path: Path, program: Path) -> None:
    for number in range(4):
        state(tmp_path, program, more=str(number)).keep(data_folder(tmp_path, str(number)))
    found = [content_of(state(tmp_path, program, more=str(number)), tmp_path / str(number)) for number in range(4)]
    assert found == [None, None, "2", "3"]


def test_a_full_disk_is_one_sentence(tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(LabFailure, match=r"^The disk is full: keeping "):
        state(tmp_path, program).keep(data_folder(tmp_path, "first"))
    assert content_of(state(tmp_path, program), tmp_path / "none") is None
