"""The file `stop` in a job's own directory: what tells the job that it is to save and end.

The directory is a stranger's. So its way is opened folder by folder, the file is made under a name that must be new,
and takes its place by a rename, which replaces a link or a pipe of that name and follows none. The same announcement
is written once: an agent that starts again finds it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from coda_agent.progress.report_file import open_folder
from coda_kube.objects.names import STOP_FILE
from coda_kube.objects.pods.stops import Announcement

_PART: Final = f".{STOP_FILE}.coda"
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST_BYTES: Final = 4096  # of such a file; ours has a hundred


def tell_stop(pods: Path, uid: str, announcement: Announcement, left_s: float) -> str:
    """Write the file for a pod, if it is not there. `left_s`: until its pods are deleted. Never waits.

    Returns "" once it is there, or where the pod has no such directory; else a sentence. Never raises."""
    opened: list[int] = []
    try:
        open_folder(pods, uid, opened)
        folder = opened[-1]
        if not _says(folder, announcement.id):
            _replace(folder, stop_text(announcement, left_s).encode())
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"pod {uid} is not told that it is to stop: {os.strerror(error.errno or errno.EIO)}"
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)
    return ""


def stop_text(announcement: Announcement, left_s: float) -> str:
    """Return what the file says: at most the notice, and never that there was more time than there is."""
    left_s = min(announcement.notice_s, max(0.0, left_s))
    return f"id={announcement.id}\ncause={announcement.cause}\nnotice_s={int(left_s)}\n"


def _says(folder: int, id_: str) -> bool:
    """True if a plain file with this announcement is there already."""
    try:
        if not stat.S_ISREG(os.stat(STOP_FILE, dir_fd=folder, follow_symlinks=False).st_mode):
            return False
        descriptor = os.open(STOP_FILE, _READ, dir_fd=folder)
    except OSError:
        return False
    try:
        return f"id={id_}".encode() in os.read(descriptor, _MOST_BYTES).split(b"\n")
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _replace(folder: int, content: bytes) -> None:
    try:
        descriptor = os.open(_PART, _NEW, 0o644, dir_fd=folder)
    except FileExistsError:  # left by an agent that was killed, or put there by somebody
        os.unlink(_PART, dir_fd=folder)
        descriptor = os.open(_PART, _NEW, 0o644, dir_fd=folder)
    try:
        os.fchmod(descriptor, 0o644)
        if os.write(descriptor, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with suppress(OSError):
            os.unlink(_PART, dir_fd=folder)
        raise
    finally:
        os.close(descriptor)
    os.rename(_PART, STOP_FILE, src_dir_fd=folder, dst_dir_fd=folder)
