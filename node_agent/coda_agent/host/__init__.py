"""The agent's own files on its node. Nothing here knows what a kernel file or a record means.

Read `files` (the only access to the kernel's trees), `state_dir` (files that survive a power cut), then `undo_journal`
(what must be undone when an agent dies)."""

from coda_agent.host.files import Files, Tree
from coda_agent.host.state_dir import StateDir
from coda_agent.host.undo_journal import ChangeKind, JournalEntry, Stamp, UndoJournal

__all__ = [
    "ChangeKind",
    "Files",
    "JournalEntry",
    "Stamp",
    "StateDir",
    "Tree",
    "UndoJournal",
]
