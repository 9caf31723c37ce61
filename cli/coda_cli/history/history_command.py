"""`coda history`: the commands that look after the store of finished jobs."""

from __future__ import annotations

import typer

from coda_cli.history.export_command import export_command
from coda_cli.history.import_command import import_command

app = typer.Typer(help="Look after the store of finished jobs.", no_args_is_help=True)


@app.callback()
def _history() -> None:
    """Look after the store of finished jobs."""


app.command("import")(import_command)
app.command("export")(export_command)
