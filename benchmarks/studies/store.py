"""Keeps what cells measured, one JSON file each, so that a run that was killed goes on where it was."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import orjson

from studies.cells import Measures

TIMES = "times.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A folder of cells, by key. Cells of older code stay: they cost little, and going back to it finds them."""

    folder: Path

    def get(self, key: str) -> Measures | None:
        """Return what the cell measured; None if it is not kept, or its file cannot be read."""
        try:
            found: Measures = orjson.loads(self._path(key).read_bytes())["measures"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found

    def put(self, key: str, name: str, measures: Measures) -> None:
        """Keep what a cell measured; whole or not at all, also if the process is killed."""
        _write(self._path(key), {"name": name, "measures": measures})

    def times(self) -> dict[str, float]:
        """Return the seconds that cells took last, by name."""
        try:
            found = orjson.loads((self.folder / TIMES).read_bytes())
            return {str(name): float(took) for name, took in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def put_time(self, name: str, took_s: float) -> None:
        """Remember how long a cell took."""
        _write(self.folder / TIMES, {**self.times(), name: round(took_s, 2)})

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_bytes(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
    beside.replace(path)
