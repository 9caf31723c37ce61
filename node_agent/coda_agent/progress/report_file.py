"""One pod's progress file, read as a thing that a stranger put there: it may be a link, a pipe, a device or huge.

The way to it is opened folder by folder and follows no link. The file itself is first looked at without being opened
(O_PATH), so that a pipe cannot hang the agent and a device hears nothing of it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coda.progress.job_report import MOST_BYTES
from coda_kube.objects.names import JOB_VOLUME, PROGRESS_FILE

VOLUMES: Final = ("volumes", "kubernetes.io~empty-dir", JOB_VOLUME)
"""Where a kubelet keeps a pod's emptyDir, below the folder of the pod. Source: kubernetes pkg/volume/emptydir."""

_UID: Final = re.compile(r"[0-9A-Za-z-]{1,128}")
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FoundReport:
    """The content of a progress file, or why it is not read. Neither: there is none."""

    content: bytes | None = None
    fault: str = ""


def find_report(pods: Path, uid: str) -> FoundReport:
    """Read the progress file of a pod. `pods`: the kubelet's folder of all pods. Never raises, never waits."""
    opened: list[int] = []
    try:
        open_folder(pods, uid, opened)
        opened.append(os.open(PROGRESS_FILE, _LOOK, dir_fd=opened[-1]))
        if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
            return FoundReport(fault="the progress file is no plain file but a link, a folder, a pipe or a device")
        opened.append(os.open(f"/proc/self/fd/{opened[-1]}", _READ))
        return _content(opened[-1])
    except FileNotFoundError:
        return FoundReport()
    except PermissionError:
        return FoundReport(fault="the agent may not read the progress file: let everybody read it (mode 0644)")
    except OSError as error:
        return FoundReport(fault=f"the progress file cannot be read: {os.strerror(error.errno or errno.EIO)}")
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)


def open_folder(pods: Path, uid: str, opened: list[int]) -> None:
    """Append the descriptors of the way to a pod's directory to `opened`, the directory last. The caller closes them.

    Each folder is opened for itself, and no link is followed. Raises OSError; FileNotFoundError for what is no uid."""
    if not _UID.fullmatch(uid):
        raise FileNotFoundError(uid)
    opened.append(os.open(pods, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    for folder in (uid, *VOLUMES):
        opened.append(os.open(folder, _FOLDER, dir_fd=opened[-1]))


def _content(descriptor: int) -> FoundReport:
    """One byte more than is allowed is enough to refuse it, however long it is or grows."""
    pieces: list[bytes] = []
    left = MOST_BYTES + 1
    while left > 0 and (piece := os.read(descriptor, left)):
        pieces.append(piece)
        left -= len(piece)
    if left <= 0:
        return FoundReport(fault=f"the progress file is longer than {MOST_BYTES // 1024} KiB")
    return FoundReport(b"".join(pieces))
