import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from coda.policy import PolicyConfig
from coda_cli.replay.command import replay_command
from coda_cli.target_cluster import planner_of_replay
from coda_extender.settings import read_settings
from coda_sim.runs import config_of
from coda_sim.traces.trace import COLUMNS

REPOSITORY = Path(__file__).parents[3]
SMALL = REPOSITORY / "examples" / "traces" / "small.csv"

app = typer.Typer()
app.command()(replay_command)


def coda_replay(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def trace_file(folder: Path, *lines: str) -> Path:
    path = folder / "jobs.csv"
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return path


def test_a_dry_run_prints_what_would_be_submitted_and_names_what_would_not(tmp_path: Path) -> None:
    trace = trace_file(
        tmp_path,
        "a1,u,v,100,7200,16,32,,2,passed,gpu",
        "a2,u,v,150,60,0,1,,1,passed,cpu",
        "a3,u,v,150,60,-1,1,,1,passed,gpu",
        "a4,u,v,300,60,1,200,,1,passed,gpu",
        "a5,u,v,300,60,1,1,,1,passed,gpu",
    )
    result = coda_replay(trace, "--dry-run", "--nodes", "4x8x48", "--speed", 100, "--max-duration", "1h")
    assert result.exit_code == 0
    objects = [json.loads(line) for line in result.stdout.splitlines()]
    made = [(one["at_s"], one["object"]["kind"], one["object"]["metadata"]["name"]) for one in objects]
    assert made == [(0.0, "TrainingJob", "a1"), (0.5, "Job", "a2"), (2.0, "TrainingJob", "a5")]
    spec = objects[0]["object"]["spec"]
    assert (spec["replicas"], spec["gpusPerReplica"], spec["cpusPerReplica"]) == (2, 8, 16)
    assert spec["template"]["metadata"]["annotations"]["sim.coda.scheduler/run-seconds"] == "36.000000"
    assert f"skipped: {trace}:4: gpus is '-1', must be a number from 0 to 1e+06" in result.stderr
    assert f"refused: {trace}:5: a4 asks 1 GPU and 200 cores" in result.stderr


def test_each_user_has_a_namespace_and_cpu_jobs_can_be_left_out(tmp_path: Path) -> None:
    trace = trace_file(
        tmp_path,
        "a1,Ann_B,v,0,60,1,1,,1,passed,gpu",
        "a2,Ann_B,v,0,60,0,1,,1,passed,cpu",
        "a3,,v,0,60,0,1,,1,passed,cpu",
    )
    result = coda_replay(trace, "--local", "--dry-run")
    told = [json.loads(line)["object"]["metadata"] for line in result.stdout.splitlines()]
    assert [one["namespace"] for one in told] == ["replay-ann-b", "replay-ann-b", "default"]
    assert result.stderr == ""
    assert len(coda_replay(trace, "--local", "--dry-run", "--gpu-jobs-only").stdout.splitlines()) == 1


def test_a_dry_run_for_an_existing_cluster_prints_what_that_one_would_get(tmp_path: Path) -> None:
    trace = trace_file(tmp_path, "a1,Ann_B,v,0,60,1,1,,1,passed,gpu", "a2,Ann_B,v,0,60,0,1,,1,passed,cpu")
    result = coda_replay(trace, "--dry-run", "--namespace", "team")
    told = [json.loads(line)["object"]["metadata"] for line in result.stdout.splitlines()]
    assert [one["namespace"] for one in told] == ["team", "team"]
    assert [one for one in told if "coda.scheduler/user" in one["annotations"]] == []
    assert result.stderr == "no cluster is asked: the nodes are taken to be 12x8x48; name others with --nodes\n"
    assert coda_replay(trace, "--dry-run", "--nodes", "2x8x48").stderr == ""


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize(("option", "value"), [("--policy", "drf"), ("--racks", "3")])
def test_a_dry_run_refuses_what_only_a_planner_would_follow(option: str, value: str, *, is_local: bool) -> None:
    result = coda_replay(SMALL, "--dry-run", *(["--local"] if is_local else []), option, value)
    assert result.exit_code == 2
    assert f"{option} has no effect with --dry-run" in result.stderr


def test_a_log_as_published_says_what_it_was_read_as(tmp_path: Path) -> None:
    log = tmp_path / "cluster_log.csv"
    header = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
    times = "2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0"
    log.write_text(f"{header}\n7,u,vc,4,16,1,FAILED,{times}\n8,u,vc,1,1,1,RUNNING,{times}\n")
    result = coda_replay(log, "--dry-run", "--nodes", "4x8x48", "--on-error", "refuse")
    assert result.exit_code == 0
    assert f"{log}: read as Helios' cluster_log.csv: 1 rows from 2020-06-09 on; 1 left out, as line 3" in result.stderr
    (told,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert told["object"]["spec"]["gpusPerReplica"] == 4


def test_bad_rows_are_refused_when_asked_for(tmp_path: Path) -> None:
    trace = trace_file(tmp_path, "a1,u,v,0,60,1,1,,1,passed,gpu", "a2,u,v,0,nan,1,1,,1,passed,gpu")
    result = coda_replay(trace, "--dry-run", "--on-error", "refuse")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"{trace}:3: duration_s is 'nan', must be a number from 1 to 3.2e+09" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--nodes", "4x8"], "'4x8' is no group of nodes"),
        (["--max-duration", "6"], "'6' is not a duration"),
        (["--window", "7"], "'7' is not a window"),
        (["--timeout", "5m"], "--timeout has no effect with --dry-run, which submits nothing: leave one of them out"),
        (["--out", "here.json"], "--out has no effect with --dry-run"),
        (["--kubeconfig", "k"], "--kubeconfig has no effect with --dry-run"),
        (["--check"], "--check has no effect with --dry-run"),
        (["--seed", "7"], "--seed 7 is of the draws from a table: add --request-table"),
        (["--timeout", ""], "'' is not a duration"),
        (["--speed", "0"], "--speed 0.0: must be a number above 0"),
        (["--speed", "nan"], "--speed nan: must be a number above 0"),
        (["--compress", "-2"], "--compress -2.0: must be a number above 0"),
        (["--timeout", "soon"], "'soon' is not a duration"),
        (["--request-table", "nowhere.csv"], "nowhere.csv: cannot be read: No such file or directory"),
        (["--window", "100:101"], "no job to submit: the options select none (days 100 to 101;"),
        (["--nodes", "2x1x1"], "no job to submit: every one can never fit"),
    ],
)
def test_bad_options_are_one_clear_sentence_and_exit_code_2(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    trace = trace_file(tmp_path, "a1,u,v,0,60,8,40,,1,passed,gpu")
    result = coda_replay(trace, "--dry-run", *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--nodes", "4x8x48"], "--nodes describes the local cluster: add --local"),
        (["--racks", "3"], "--racks describes the local cluster: add --local"),
        (["--local", "--kubeconfig", "k"], "--local starts its own cluster: leave --kubeconfig out"),
        (["--policy", "drf"], "--policy is the local cluster's: add --local"),
        (
            ["--local", "--policy", "srtf"],
            "--policy srtf stops jobs by how long they ran",
        ),
        (["--local", "--policy", "first"], "'first' is no policy: choose one of arrival"),
        (["--local", "--out", "/nowhere/out.json"], "--out /nowhere/out.json: cannot be written: No such file"),
    ],
)
def test_nothing_is_started_for_options_that_contradict_each_other(arguments: list[str], sentence: str) -> None:
    result = coda_replay(SMALL, *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_a_local_planner_s_times_are_divided_by_the_speed_like_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in planner_of_replay("drf", 200.0).items():
        monkeypatch.setenv(name, value)
    assert read_settings().policy() == PolicyConfig(policy="drf", promise_patience_s=(72 * 3600.0) / 200.0)


def test_a_local_planner_divides_the_cluster_as_the_simulator_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in planner_of_replay("coda", 200.0).items():
        monkeypatch.setenv(name, value)
    assert read_settings().policy().arrays == config_of("coda").arrays
    assert read_settings().policy().reclaim == config_of("coda").reclaim


def test_the_small_trace_is_what_its_generator_writes() -> None:
    generator = SMALL.with_name("generate.py")
    written = subprocess.run([sys.executable, str(generator)], capture_output=True, check=True, timeout=60).stdout
    assert written == SMALL.read_bytes()


def test_the_small_trace_fits_four_nodes_without_a_bad_row() -> None:
    result = coda_replay(SMALL, "--dry-run", "--nodes", "4x8x48", "--on-error", "refuse")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 90
    assert result.stderr == ""
