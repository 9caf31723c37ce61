from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.errors import Outage
from coda_agent.host.state_dir import StateDir
from coda_agent.host.undo_journal import MOST_RECORDS, NAME, ChangeKind, JournalEntry, UndoJournal, _entry_json
from tests.agent.places import fresh_directory

ENTRY = JournalEntry(
    kind=ChangeKind.CPU_LIMIT,
    target="kubepods/pod1/a",
    original="max 100000",
    replaced="max 100000",
    value="200000 100000",
    at_s=1.5e9,
    boot_id="boot",
    pod_uid="1",
    container_id="a",
    started_ticks=77,
)
HOLD = """
import sys
from pathlib import Path
from coda_agent.host.state_dir import StateDir
from coda_agent.host.undo_journal import UndoJournal
journal = UndoJournal(StateDir(Path(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""
OTHER = replace(ENTRY, kind=ChangeKind.GROUP, target="2", pod_uid="2", started_ticks=None)


@contextmanager
def opened(directory: Path) -> Iterator[UndoJournal]:
    journal = UndoJournal(StateDir(directory))
    try:
        yield journal
    finally:
        journal.close()


def left(directory: Path) -> tuple[JournalEntry, ...]:
    with opened(directory) as journal:
        return journal.entries


def test_what_was_begun_and_not_ended_is_there_after_a_restart(state: Path) -> None:
    with opened(state) as journal:
        journal.begin(ENTRY)
        journal.begin(OTHER)
        journal.begin(replace(ENTRY, value="100000 100000", replaced=ENTRY.value))
        journal.end(ChangeKind.GROUP, "2")
    assert left(state) == (replace(ENTRY, value="100000 100000", replaced=ENTRY.value),)


def test_an_entry_is_on_the_disk_before_begin_returns(state: Path) -> None:
    with opened(state) as journal:
        journal.begin(ENTRY)
        assert b"kubepods/pod1/a" in (state / NAME).read_bytes()


def test_ending_what_was_never_begun_changes_nothing(state: Path) -> None:
    with opened(state) as journal:
        journal.end(ChangeKind.GROUP, "2")
        assert (state / NAME).read_bytes() == b""


@given(cut=st.integers(0, 400), entries=st.integers(1, 5))
@settings(max_examples=60)
def test_a_torn_end_loses_only_itself(cut: int, entries: int) -> None:
    directory = fresh_directory()
    begun = [replace(ENTRY, target=str(number)) for number in range(entries)]
    with opened(directory) as journal:
        for entry in begun:
            journal.begin(entry)
    whole = (directory / NAME).read_bytes()
    kept = whole[: max(0, len(whole) - cut)]
    (directory / NAME).write_bytes(kept)
    complete = [line for line in kept.split(b"\n") if line and line in whole.split(b"\n")]
    assert left(directory) == tuple(begun[: len(complete)])


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4))
@settings(max_examples=60)
def test_flipped_bytes_cost_only_their_lines(flips: list[tuple[int, int]]) -> None:
    directory = fresh_directory()
    begun = [replace(ENTRY, target=str(number)) for number in range(8)]
    with opened(directory) as journal:
        for entry in begun:
            journal.begin(entry)
    content = bytearray((directory / NAME).read_bytes())
    whole = [b"\n" + line + b"\n" for line in content.split(b"\n") if line]
    for at, mask in flips:
        content[at % len(content)] ^= mask
    (directory / NAME).write_bytes(bytes(content))
    untouched = [entry for entry, line in zip(begun, whole, strict=True) if line in content]
    found = left(directory)
    assert set(untouched) <= set(found) <= set(begun)


def test_damage_is_told_in_one_sentence_and_cleared_out(state: Path) -> None:
    with opened(state) as journal:
        journal.begin(ENTRY)
        assert journal.damage is None
    with (state / NAME).open("ab") as file:
        file.write(b'\xff\xfe garbage\n00000000 {"begin":{}}\n' + b"x" * 3000)
    with opened(state) as journal:
        assert journal.damage == f"3 lines were damaged in the journal in {state}; all others were read"
    with opened(state) as journal:
        assert journal.damage is None
        assert journal.entries == (ENTRY,)


def test_after_a_torn_record_the_next_one_starts_a_clean_line(state: Path) -> None:
    with opened(state) as journal:
        journal.begin(ENTRY)
    with (state / NAME).open("ab") as file:
        file.write(b'12345678 {"beg')
    with opened(state) as journal:
        journal.begin(OTHER)
    assert left(state) == (ENTRY, OTHER)


class FailingDisk(StateDir):
    """Full after `room` more appends; a failing one leaves a part behind."""

    room = 10**9

    def append(self, name: str, record: bytes) -> None:
        self.room -= 1
        if self.room < 0:
            super().append(name, record[: len(record) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(name, record)


def test_what_cannot_be_written_down_must_not_be_done_and_harms_nothing_before_it(state: Path) -> None:
    disk = FailingDisk(state)
    journal = UndoJournal(disk)
    journal.begin(ENTRY)
    disk.room = 0
    with pytest.raises(Outage, match=r"cannot be written: .*No space left"):
        journal.begin(OTHER)
    with pytest.raises(Outage, match="cannot be written"):
        journal.end(*ENTRY.key)
    assert journal.entries == (ENTRY,)
    disk.room = 10
    journal.begin(OTHER)
    journal.close()
    assert left(state) == (ENTRY, OTHER)


FULL = """
import resource, sys
from pathlib import Path
from coda.errors import Outage
from coda_agent.host.state_dir import StateDir
from coda_agent.host.undo_journal import UndoJournal
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # no file may grow
journal = UndoJournal(StateDir(Path(sys.argv[1])))
(entry,) = journal.entries
for what in (lambda: journal.begin(entry), lambda: journal.end(*entry.key)):
    try:
        what()
    except Outage as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.end(*entry.key)
print("ended")
"""


def test_on_a_full_disk_the_next_agent_reads_what_to_undo_and_begins_nothing(state: Path) -> None:
    """It could not start, nor could a pod that restores the node: what a killed agent had throttled stayed so."""
    with opened(state) as journal:
        journal.begin(OTHER)
        journal.end(*OTHER.key)
        journal.begin(ENTRY)
    ended = subprocess.run([sys.executable, "-c", FULL, str(state)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    *refused, last = ended.stdout.splitlines()
    assert [f"the journal in {state} cannot be written" in line for line in refused] == [True, True]
    assert last == "ended"
    assert "nothing is throttled until it can" in ended.stderr
    assert left(state) == ()


def test_a_long_life_does_not_grow_the_file(state: Path) -> None:
    with opened(state) as journal:
        journal.begin(OTHER)
        one = (state / NAME).stat().st_size
        for _ in range(MOST_RECORDS):
            journal.begin(ENTRY)
            journal.end(*ENTRY.key)
        assert (state / NAME).stat().st_size < (MOST_RECORDS + 2) * 2 * one
    assert left(state) == (OTHER,)


def test_a_second_agent_is_refused_with_the_first_one_s_process(state: Path) -> None:
    with opened(state):
        with pytest.raises(Outage) as refused:
            UndoJournal(StateDir(state))
        assert str(refused.value) == (
            f"another node agent (process {os.getpid()}) is at work on this node with {state}; stop it first"
        )


def test_a_second_process_is_refused_until_the_first_is_killed(state: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdin is not None
    assert first.stdout is not None
    with first.stdin, first.stdout:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(Outage, match=f"process {first.pid}"):
            UndoJournal(StateDir(state))
        first.kill()
        first.wait()
    assert left(state) == ()


@pytest.mark.parametrize(
    "changes", [{"value": 5}, {"at_s": "now"}, {"target": None}, {"started_ticks": "7"}, {"burst_us": True}]
)
def test_a_record_of_another_type_is_damage(state: Path, changes: dict[str, object]) -> None:
    """Its checksum is right. Read as it is, it would end the agent at each start."""
    record = json.dumps({"begin": {**_entry_json(ENTRY), **changes}}).encode()
    (state / NAME).write_bytes(b"\n%08x %s\n" % (zlib.crc32(record), record))
    with opened(state) as journal:
        assert journal.entries == ()
        assert journal.damage == f"1 line was damaged in the journal in {state}; all others were read"


def test_a_field_of_a_newer_agent_keeps_no_change_from_being_undone(state: Path) -> None:
    """The newer one was killed, and a roll-back brought this one: the limit of a cgroup must not stay."""
    record = json.dumps({"begin": {**_entry_json(ENTRY), "newer": 1}}).encode()
    (state / NAME).write_bytes(b"\n%08x %s\n" % (zlib.crc32(record), record))
    with opened(state) as journal:
        assert journal.entries == (ENTRY,)
        assert journal.damage is None


@pytest.mark.parametrize("what", ["a file", "a directory in the journal's place"])
def test_a_directory_that_cannot_be_used_says_so(state: Path, what: str) -> None:
    if what == "a file":
        (state / "state").write_text("")
        with pytest.raises(Outage, match="cannot be made"):
            StateDir(state / "state")
        return
    (state / NAME).mkdir()
    for _ in range(2):  # a failed start lets go of the lock
        with pytest.raises(Outage, match="cannot be used"):
            UndoJournal(StateDir(state))


@given(st.integers())
@settings(max_examples=30)
def test_any_order_of_beginning_and_ending_is_remembered(seed: int) -> None:
    rng = random.Random(seed)
    directory = fresh_directory()
    expected: dict[tuple[ChangeKind, str], JournalEntry] = {}
    for _ in range(3):
        with opened(directory) as journal:
            assert {entry.key: entry for entry in journal.entries} == expected
            for _ in range(rng.randrange(12)):
                entry = replace(ENTRY, target=str(rng.randrange(4)), value=str(rng.random()))
                if rng.random() < 0.6:
                    journal.begin(entry)
                    expected[entry.key] = entry
                else:
                    journal.end(*entry.key)
                    expected.pop(entry.key, None)
    assert {entry.key: entry for entry in left(directory)} == expected
