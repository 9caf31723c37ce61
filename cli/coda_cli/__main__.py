"""The entry point: the commands, and one sentence for every expected failure."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from coda.compiled import is_compiled
from coda.errors import CodaError
from coda_cli import check, completion, local
from coda_cli.classify import classify_command
from coda_cli.demo.command import demo_command
from coda_cli.doctor.command import doctor_command
from coda_cli.exit_codes import EXIT_CODES
from coda_cli.explain.explain_command import explain_command
from coda_cli.explain.queue_command import queue_command
from coda_cli.history import import_command
from coda_cli.history.report_command import report_command
from coda_cli.replay.command import replay_command
from coda_cli.simulate.command import simulate_command
from coda_cli.top.command import top_command
from coda_cli.version.command import version_command
from coda_kube.api.installed_version import installed_version

app = typer.Typer(
    name="coda",
    help="Coda schedules DNN training jobs on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,  # two options at each command; `coda completion` prints the same
    pretty_exceptions_enable=False,
    epilog="Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + ".",
    rich_markup_mode=None,  # its tables cut the names of options in 80 columns, and take [brackets] for markup
)
app.add_typer(local.app, name="local")
app.command("demo", short_help="Show in three minutes what Coda does.")(demo_command)
app.command("replay")(replay_command)
app.command("simulate")(simulate_command)
app.command("check")(check.check)
app.command("classify")(classify_command)
app.command("doctor", short_help="Say whether cluster and Coda are well.")(doctor_command)
app.command("queue")(queue_command)
app.command("explain", short_help="Say why a job waits, and what you can do.")(explain_command)
app.command("top", short_help="Show who uses the nodes, and what is throttled.")(top_command)
app.command("report", short_help="Report on finished jobs.")(report_command)
app.add_typer(import_command.app, name="history")
app.command("version", short_help="Show the version of every part.")(version_command)
app.command("completion")(completion.completion_command)


def _version(asked: bool) -> None:
    if asked:
        print(f"coda {installed_version()} ({'compiled core' if is_compiled() else 'pure Python'})")
        raise typer.Exit


@app.callback()
def _coda(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Coda schedules DNN training jobs on Kubernetes."""


def main() -> None:
    """Run the command line. `EXIT_CODES` says how it ends; what failed is one sentence on stderr."""
    signal.signal(signal.SIGTERM, _interrupt)
    completion.make_ready()
    try:
        app(prog_name="coda")
    except CodaError as error:
        print(f"coda: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def complete_for_kubectl() -> None:
    """Answer kubectl, which runs `kubectl_complete-coda WORD ...` to complete `kubectl coda`."""
    completion.answer_kubectl(sys.argv[1:], main)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Turn SIGTERM into Ctrl-C, which the running command handles."""
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
