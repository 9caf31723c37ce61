"""The files that `--out` names: checked before anything runs, and there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import typer

from coda.errors import InvalidInput


def folder_from_text(text: str) -> Path:
    """Return the folder that an option names. Empty, as of a variable that is not set, it is not the current one."""
    if not text:
        raise typer.BadParameter("is empty: name a folder")
    return Path(text)


def make_folder(out: Path, name: str) -> None:
    """Make the folder. Raises InvalidInput if the file `name` in it could not be written; leaves no such file behind.

    A run may fail hours later: whoever finds the file must be able to take it for a result."""
    path = out / name
    try:
        out.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise InvalidInput(f"--out {out}: cannot be written: {error.strerror or error}") from error


def check_writable(out: Path) -> None:
    """Raise InvalidInput if `write_whole` could not write the file `out`; leave nothing behind."""
    try:
        if out.exists() and not out.is_fifo():  # of a pipe, its reader would see the end already
            out.open("ab").close()
        if not _is_in_place(out):
            unfinished = _unfinished(out)
            unfinished.open("ab").close()
            unfinished.unlink()
    except OSError as error:
        raise InvalidInput(f"--out {out}: cannot be written: {error.strerror or error}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write the file; an older one stays as it is until all of the content is on the disk. Raises OSError.

    Through a link, and to a device or a pipe, it is written in place."""
    if _is_in_place(path):
        path.write_bytes(content)
        return
    unfinished = _unfinished(path)
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _is_in_place(path: Path) -> bool:
    return path.is_symlink() or (path.exists() and not path.is_file())


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")
