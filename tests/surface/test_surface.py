"""What users, dashboards and nodes see is what `surface.txt` lists. Where the code stands has no part in it.

A change that is meant: `CODA_UPDATE_SURFACE=1 pytest tests/surface`, and look at the difference.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from tests.surface import cluster, commands, programs

GOLDEN = Path(__file__).with_name("surface.txt")
UPDATE = "CODA_UPDATE_SURFACE"


def listing(folder: Path) -> str:
    """Every section, each with its entries in order. Simulations write into `folder`."""
    sections = {
        "crds": cluster.crds(),
        "keys": cluster.keys(),
        "metrics": programs.metrics(),
        "settings": programs.settings(),
        "commands": commands.commands(),
        "node files": programs.node_files(),
        "simulation files": commands.simulation_files(folder),
        "wire": programs.wire(),
        "chart": cluster.chart(),
    }
    return "\n".join(f"[{name}]\n" + "".join(f"{line}\n" for line in sorted(found)) for name, found in sections.items())


def test_what_is_seen_from_outside_is_as_it_was(tmp_path: Path) -> None:
    found = listing(tmp_path)
    if os.environ.get(UPDATE) == "1":
        GOLDEN.write_text(found, encoding="utf-8")
    known = GOLDEN.read_text(encoding="utf-8")
    changes = difflib.unified_diff(known.splitlines(), found.splitlines(), GOLDEN.name, "the code", lineterm="", n=0)
    if found != known:
        told = "\n".join(changes)
        pytest.fail(f"{told}\nIf this is meant: {UPDATE}=1 pytest tests/surface", pytrace=False)


def test_no_metric_is_missed() -> None:
    listed = {line.partition(" ")[0] for line in programs.metrics()}
    assert programs.metric_like() <= listed
