"""Files that were reviewed, and the comparison with what is made now.

A change that is meant: `CODA_UPDATE_GOLDEN=1 pytest -m e2e tests/deploy`, and look at the difference.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent


def compare_with_golden(name: str, lines: Sequence[str]) -> None:
    """Fails with the difference."""
    file = FOLDER / name
    if os.environ.get("CODA_UPDATE_GOLDEN") == "1":
        file.write_text("\n".join(lines) + "\n")
    reviewed = file.read_text().splitlines() if file.exists() else []
    told = list(difflib.unified_diff(reviewed, lines, "reviewed", "now", lineterm="", n=1))
    assert not told, "\n".join((*told, "If this is meant: CODA_UPDATE_GOLDEN=1 pytest -m e2e tests/deploy"))
