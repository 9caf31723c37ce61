"""The entry point: the commands, and one sentence for every expected failure."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import FrameType
from typing import Annotated, Final, NamedTuple

from coda.errors import CodaError

try:
    import typer

    from coda_cli import completion
    from coda_cli.exit_codes import EXIT_CODES
except ModuleNotFoundError as missing:  # the wheel without its extra makes the command, too
    raise SystemExit(
        f"coda: {missing.name} is missing: install the wheel with its extra, as pip install 'FILE.whl[cli]' "
        "(docs/installing.md; never from PyPI, where coda is somebody else's)"
    ) from None


class Command(NamedTuple):
    """A command or a group of commands, and the `module:attribute` where it is."""

    name: str
    place: str
    short_help: str | None = None


COMMANDS: Final = (
    Command("local", "coda_cli.local:app"),
    Command("demo", "coda_cli.demo.command:demo_command", "Show in three minutes what Coda does."),
    Command("replay", "coda_cli.replay.command:replay_command"),
    Command("simulate", "coda_cli.simulate.command:simulate_command"),
    Command("check", "coda_cli.check:check"),
    Command("classify", "coda_cli.classify:classify_command"),
    Command("doctor", "coda_cli.doctor.command:doctor_command", "Say whether cluster and Coda are well."),
    Command("queue", "coda_cli.explain.queue_command:queue_command"),
    Command("explain", "coda_cli.explain.explain_command:explain_command", "Say why a job waits, and what you can do."),
    Command("top", "coda_cli.top.command:top_command", "Show who uses the nodes, and what is throttled."),
    Command("report", "coda_cli.history.report_command:report_command", "Report on finished jobs."),
    Command("history", "coda_cli.history.history_command:app"),
    Command("version", "coda_cli.version.command:version_command", "Show the version of every part."),
    Command("completion", "coda_cli.completion:completion_command"),
)
"""In the order of `coda --help`. Only the one that is asked for is loaded: all of them take more than a second."""


def command_line(commands: Iterable[Command] = COMMANDS) -> typer.Typer:
    """Return the command line with these commands; the others are unknown to it."""
    made = typer.Typer(
        name="coda",
        help="Coda schedules DNN training jobs on Kubernetes.",
        no_args_is_help=True,
        add_completion=False,  # two options at each command; `coda completion` prints the same
        pretty_exceptions_enable=False,
        epilog="Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + ".",
        rich_markup_mode=None,  # its tables cut the names of options in 80 columns, and take [brackets] for markup
    )
    made.callback()(_coda)
    for command in commands:
        module, _, attribute = command.place.partition(":")
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            made.add_typer(found, name=command.name)
        else:
            made.command(command.name, short_help=command.short_help)(found)
    return made


def commands_for(words: Sequence[str]) -> tuple[Command, ...]:
    """Return the command that `words` begin with, or all: for help, for a slip of the pen, and to complete a name."""
    first = "version" if list(words) == ["--version"] else words[0] if words else ""
    return tuple(command for command in COMMANDS if command.name == first) or COMMANDS


def _version(asked: bool) -> None:
    if asked:
        # Here, since these load the planner and the client of the API server.
        from coda.compiled import is_compiled
        from coda_kube.api.installed_version import installed_version

        print(f"coda {installed_version()} ({'compiled core' if is_compiled() else 'pure Python'})")
        raise typer.Exit


def _coda(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Coda schedules DNN training jobs on Kubernetes."""


def main() -> None:
    """Run the command line. `EXIT_CODES` says how it ends; what failed is one sentence on stderr."""
    _end_by_sigterm()
    completion.make_ready()
    try:
        try:
            command_line(commands_for(completion.words_so_far() or sys.argv[1:]))(prog_name="coda")
        finally:
            if sys.stdout is not None:  # it was closed by whoever started this
                sys.stdout.flush()
    except CodaError as error:
        print(f"coda: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # who reads this has left, and knows it
            print(f"coda: {error.filename or 'reading or writing'}: {error.strerror or error}", file=sys.stderr)
        _end_output()
        raise SystemExit(1) from None


def _end_output() -> None:
    """Throw away what waits to be printed: else Python tries once more at its end, and complains."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complete_for_kubectl() -> None:
    """Answer kubectl, which runs `kubectl_complete-coda WORD ...` to complete `kubectl coda`."""
    completion.answer_kubectl(sys.argv[1:], main)


def _end_by_sigterm() -> None:
    """Have SIGTERM do what Ctrl-C does, also where a shell has Ctrl-C ignored for a job in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C stays without effect
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Turn SIGTERM into Ctrl-C, which the running command handles."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
