"""How findings are printed."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from coda_cli.doctor.command import show
from coda_cli.doctor.finding import Finding, Level


def test_every_level_is_printed_with_its_fix() -> None:
    told = StringIO()
    show([Finding(level, "it", "is so", "mend it") for level in Level], Console(file=told, width=80))
    lines = told.getvalue().splitlines()
    assert [line.split()[0] for line in lines[::2]] == [level.value for level in Level]
    assert {line.strip() for line in lines[1::2]} == {"-> mend it"}
