"""What all commands have in common: forms of output, exit codes, colours, completion."""

from __future__ import annotations

import asyncio
import io
import json
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from coda_cli.__main__ import COMMANDS, command_line, commands_for
from coda_cli.exit_codes import EXIT_CODES
from coda_cli.explain.queue_command import show
from coda_cli.explain.waiting import Waiting
from coda_cli.output import TableOutput, print_for_programs
from coda_kube.api.credentials import current_namespace

BIN = Path(sys.executable).parent
LONG = "needs 2 ranks of 8 GPUs each; " * 8
LINE = Waiting(name="team/train", wants="2 ranks of 8 GPUs", user="ana", code="InsufficientGPUs", message=LONG)
NOBODY = "https://127.0.0.1:1"


def kubeconfig(folder: Path, *, namespace: str = "", server: str = NOBODY) -> Path:
    """Of a server that nobody has started, or of this one."""
    path = folder / "config"
    clusters = f"clusters: [{{name: a, cluster: {{server: '{server}'}}}}], users: [{{name: a, user: {{token: t}}}}]"
    context = f"{{cluster: a, user: a{f', namespace: {namespace}' if namespace else ''}}}"
    path.write_text(f"{{{clusters}, current-context: a, contexts: [{{name: a, context: {context}}}]}}\n")
    return path


def shown(width: int, *, is_wide: bool = False) -> str:
    said = io.StringIO()
    show(Console(file=said, width=width), [LINE], 0.0, is_wide=is_wide)
    return said.getvalue()


def test_a_narrow_terminal_has_the_code_and_a_wide_table_has_each_line_whole() -> None:
    assert "ranks of 8 GPUs each" not in shown(80)
    assert "InsufficientGPUs" in shown(80)
    assert max(map(len, shown(80).splitlines())) <= 80
    assert "ranks of 8 GPUs each" in shown(120)
    assert LONG.strip() in shown(80, is_wide=True).splitlines()[1]


def test_the_columns_of_a_wide_table_are_below_one_another_in_every_script() -> None:
    said = io.StringIO()
    lines = [replace(LINE, user="李雷"), replace(LINE, user="ann")]
    show(Console(file=said, width=80), lines, 0.0, is_wide=True)
    starts = {cell_len(line.partition("2 ranks of 8 GPUs ")[0]) for line in said.getvalue().splitlines()[1:3]}
    assert len(starts) == 1


@pytest.mark.parametrize(("output", "load"), [(TableOutput.JSON, json.loads), (TableOutput.YAML, yaml.safe_load)])
def test_json_and_yaml_say_the_same(output: TableOutput, load: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(load)
    assert print_for_programs([LINE.as_json()], output)
    assert load(capsys.readouterr().out) == [LINE.as_json()]


def test_forms_for_people_are_left_to_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert not print_for_programs([], TableOutput.WIDE)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("version --client", 0),
        ("queue --kubeconfig CONFIG", 1),
        ("version --kubeconfig CONFIG", 1),
        ("doctor --kubeconfig CONFIG", 2),
        ("check --kubeconfig CONFIG", 2),
        ("queue --kubeconfig CONFIG -o xml", 2),
        ("queue --kubeconfig CONFIG.missing", 2),
        ("queue -A -n team --kubeconfig CONFIG", 2),
        ("nothing", 2),
    ],
)
def test_exit_codes_are_those_that_help_names(words: str, code: int, tmp_path: Path) -> None:
    known = str(kubeconfig(tmp_path))
    ended = CliRunner().invoke(command_line(), words.replace("CONFIG", known).split())
    assert ended.exit_code == code, ended.output
    assert code in EXIT_CODES
    if code == 1:
        assert "the cluster does not answer" in ended.stderr


def test_help_names_every_exit_code() -> None:
    told = " ".join(CliRunner().invoke(command_line(), ["--help"]).output.split())
    assert all(f"{code} {meaning}" in told for code, meaning in EXIT_CODES.items())


@pytest.mark.parametrize(
    ("environ", "has_colour"), [({"FORCE_COLOR": "1"}, True), ({"NO_COLOR": "1"}, False), ({}, False)]
)
def test_colours_are_only_for_terminals_and_no_color_wins(
    environ: dict[str, str], has_colour: bool, tmp_path: Path
) -> None:
    """FORCE_COLOR stands for a terminal."""
    known = {"FORCE_COLOR": "1", **environ} if "NO_COLOR" in environ else environ
    done = subprocess.run(
        [BIN / "coda", "doctor", "--kubeconfig", kubeconfig(tmp_path)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "TERM": "xterm-256color", **known},
        check=False,
    )
    assert "does not answer" in done.stderr
    assert ("\x1b[31m" in done.stderr) is has_colour


@pytest.mark.parametrize("words", [["queue"], ["explain", "a"], ["top"], ["doctor"], ["version"], ["check"]])
def test_commands_that_read_a_cluster_take_a_context(words: list[str], tmp_path: Path) -> None:
    ended = CliRunner().invoke(command_line(), [*words, "--kubeconfig", str(kubeconfig(tmp_path)), "--context", "qa"])
    assert ended.exit_code in (1, 2)
    assert "has no context qa; known: " in " ".join(ended.stderr.split())


def test_the_namespace_is_that_of_the_kubeconfig(tmp_path: Path) -> None:
    assert current_namespace(kubeconfig(tmp_path, namespace="team")) == "team"
    assert current_namespace(kubeconfig(tmp_path)) == "default"
    assert current_namespace(tmp_path / "missing") == "default"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["top", "--watch"], ["top"], id="a command"),
        pytest.param(["local", "up"], ["local"], id="a group"),
        pytest.param(["--version"], ["version"], id="the version"),
        pytest.param([], [command.name for command in COMMANDS], id="nothing"),
        pytest.param(["--help"], [command.name for command in COMMANDS], id="help"),
        pytest.param(["tpo"], [command.name for command in COMMANDS], id="a slip of the pen"),
    ],
)
def test_the_command_that_is_asked_for_is_loaded_alone(words: list[str], expected: list[str]) -> None:
    assert [command.name for command in commands_for(words)] == expected


def test_a_question_about_a_cluster_loads_neither_simulator_nor_database() -> None:
    asked = "import sys; sys.argv = ['coda', 'top', '--help']; from coda_cli.__main__ import main"
    heavy = "sorted({'sqlalchemy', 'alembic', 'kopf', 'coda_sim.engine'} & {*sys.modules})"
    script = f"{asked}\ntry: main()\nexcept SystemExit: print('loaded', {heavy})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_has_no_fault(shell: str, tmp_path: Path) -> None:
    script = tmp_path / f"script.{shell}"
    script.write_text(CliRunner().invoke(command_line(), ["completion", shell]).output)
    assert "_CODA_COMPLETE" in script.read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", script], check=True)


def completed_by_bash(folder: Path, *words: str) -> list[str]:
    """What bash offers for the last word, which begins so."""
    script = f"""source <({BIN}/coda completion bash)
        COMP_WORDS=(coda {shlex.join(words)}); COMP_CWORD={len(words)}
        _coda_completion {BIN}/coda; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    assert completed_by_bash(tmp_path, "expl") == ["explain"]
    assert "--output" in completed_by_bash(tmp_path, "queue", "--o")
    assert completed_by_bash(tmp_path, "queue", "-o", "ya") == ["yaml"]


async def test_bash_completes_names_of_jobs_and_namespaces_of_the_cluster(tmp_path: Path) -> None:
    jobs = "/apis/coda.scheduler/v1alpha1/namespaces/{}/trainingjobs"
    names = {
        jobs.format("team"): ("bert", "resnet", "resnet-2"),
        jobs.format("other"): ("gpt",),
        "/api/v1/namespaces": ("other", "team"),
    }

    async def listing(request: web.Request) -> web.Response:
        found = [{"metadata": {"name": name}} for name in names.get(request.path, ())]
        return web.json_response({"metadata": {}, "items": found})

    application = web.Application()
    application.router.add_get("/{path:.*}", listing)
    async with TestServer(application) as server:
        file = kubeconfig(tmp_path, namespace="team", server=str(server.make_url("")))
        at = ("--kubeconfig", str(file))
        assert await asyncio.to_thread(completed_by_bash, tmp_path, "explain", *at, "res") == ["resnet", "resnet-2"]
        assert await asyncio.to_thread(completed_by_bash, tmp_path, "explain", *at, "-n", "other", "") == ["gpt"]
        assert await asyncio.to_thread(completed_by_bash, tmp_path, "queue", *at, "-n", "te") == ["team"]
    assert await asyncio.to_thread(completed_by_bash, tmp_path, "explain", *at, "res") == []  # nobody answers


def test_kubectl_completes_the_plugin() -> None:
    done = subprocess.run(
        [BIN / "kubectl_complete-coda", "queue", "-o", ""], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["table", "wide", "json", "yaml", ":4"]


@pytest.mark.parametrize("ignores", [False, True], ids=["in the foreground", "in the background of a script"])
def test_sigterm_ends_a_command_also_where_ctrl_c_is_ignored(ignores: bool) -> None:
    """A shell without job control has its background jobs ignore Ctrl-C, and they must still end by `kill`."""

    def as_the_shell_does() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignores else signal.SIG_DFL)

    command = subprocess.Popen(
        [sys.executable, "-m", "coda_cli", "simulate", "--policy", "fifo-skip"],  # a month: a minute
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=as_the_shell_does,
    )
    assert command.stdout is not None
    assert "100000 jobs" in command.stdout.readline()  # it runs
    if ignores:
        command.send_signal(signal.SIGINT)
    command.send_signal(signal.SIGTERM)
    said, _ = command.communicate(timeout=60)  # Rich repeats the first line if the signal comes while it prints it
    assert (said.splitlines()[-1], command.returncode) == ("coda: interrupted", 130)
