import gzip
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from coda_cli.simulate.command import simulate_command
from coda_sim.results.audit import breaches, measures, read_jobs
from coda_sim.results.measure_names import MEASURE_BY_KEY
from coda_sim.traces.trace import COLUMNS

app = typer.Typer()
app.command()(simulate_command)

GOOD = (
    "a1,u1,v,0,3600,2,4,,1,passed,gpu",
    "a2,u2,v,60,600,4,8,,2,passed,gpu",
    "a3,u1,v,90,60,0,3,,1,passed,cpu",
    "a4,u2,v,4000,60,4,8,,2,passed,gpu",
)


def coda_simulate(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def trace_file(folder: Path, *lines: str, header: str = ",".join(COLUMNS)) -> Path:
    path = folder / "jobs.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_a_study_writes_summary_records_plots_and_one_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    trace = trace_file(tmp_path, *GOOD)
    result = coda_simulate("--trace", trace, "--cluster", "2x2x8", "--policy", "arrival", "--out", out)
    assert result.exit_code == 0, result.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["schema"] == 1
    assert {"version", "command", "workload", "cluster", "warmup_s", "drain_s", "runs", "means"} <= summary.keys()
    (run,) = summary["runs"]
    assert (run["policy"], run["without"], run["seed"]) == ("arrival", [], 1)
    assert run["metrics"].keys() == MEASURE_BY_KEY.keys()
    assert run["metrics"]["jobs_finished"] == 4
    assert run["metrics"]["gpu_wait_p50_s"] == 200.0  # of 0, 3540 and 200
    jobs = read_jobs(out / "jobs.csv.gz")
    assert breaches(jobs, {"node-0001": (2, 8, 0), "node-0002": (2, 8, 0)}) == []
    audited = measures(jobs, 4, 16, 0.0, 4000.0)
    assert {name: run["metrics"][name] for name in audited} == pytest.approx(audited, rel=1e-9)
    report = (out / "report.html").read_text()
    assert report.count("<svg") == 5  # four plots and a timeline
    assert "src=" not in report
    assert all(f">{measure.name}</abbr></td><td>{key}</td>" in report for key, measure in MEASURE_BY_KEY.items())


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    trace = trace_file(tmp_path, *GOOD)
    for folder in ("one", "two"):
        assert coda_simulate("--trace", trace, "--cluster", "2x2x8", "--out", tmp_path / folder).exit_code == 0
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "two").iterdir())
    for name in names:
        if name != "timing.json":
            assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    (run,) = json.loads((tmp_path / "one" / "summary.json").read_text())["runs"]
    assert run["policy"] == "coda"  # unless somebody names another


def test_runs_at_the_same_time_give_what_runs_in_turn_give(tmp_path: Path) -> None:
    shapes = [(0, 4), (1, 4), (4, 16), (2, 8)]
    jobs = [
        f"j{n},u{n % 3},v,{40 * n},{300 + 50 * n},{g},{c},,1,passed,{'gpu' if g else 'cpu'}"
        for n, (g, c) in enumerate(shapes * 15)
    ]
    options = ("--trace", trace_file(tmp_path, *jobs), "--cluster", "2x4x28", "--seed", 1, "--seed", 2)
    assert coda_simulate(*options, "--out", tmp_path / "turn").exit_code == 0
    assert coda_simulate(*options, "--jobs", 2, "--out", tmp_path / "once").exit_code == 0
    for name in ("summary.json", "coda-seed2/jobs.csv.gz"):
        assert (tmp_path / "turn" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()
    (mean,) = json.loads((tmp_path / "turn" / "summary.json").read_text())["means"]
    assert mean["seeds"] == [1, 2]
    assert mean["metrics"]["jobs_finished"] == {"mean": 60.0, "low": 60.0, "high": 60.0}


@pytest.mark.parametrize(("costs", "lost"), [("paid", True), ("resumed", False), ("free", False)])
def test_who_pays_for_an_abort_is_an_option(costs: str, lost: bool, tmp_path: Path) -> None:
    # 16 of the node's 28 cores belong to its GPUs; the CPU job borrows 12 of them, until the GPU job wants them.
    trace = trace_file(tmp_path, "c1,u1,v,0,1000,0,24,,1,passed,cpu", "g1,u1,v,400,300,4,8,,1,passed,gpu")
    options = ("--trace", trace, "--cluster", "1x4x28", "--policy", "coda", "--out", tmp_path / "out")
    given = () if costs == "paid" else ("--costs", costs)
    assert coda_simulate(*options, *given).exit_code == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["costs"] == costs
    metrics = summary["runs"][0]["metrics"]
    assert metrics["aborts"] == 1
    assert (metrics["lost_core_s"] > 0) is lost


def test_who_has_checkpoints_is_an_option_and_said(tmp_path: Path) -> None:
    trace = trace_file(tmp_path, "g1,u1,v,0,9000,4,4,,1,passed,gpu", "g2,u1,v,6000,60,4,4,,1,passed,gpu")
    options = ("--trace", trace, "--cluster", "1x4x28", "--policy", "tiresias-las", "--out", tmp_path / "out")
    preempted = []
    for given in ((), ("--resumable", "0")):
        result = coda_simulate(*options, *given)
        assert ("0% of GPU jobs resume" in " ".join(result.stdout.split())) is bool(given)
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        preempted.append((summary["resumable"], summary["runs"][0]["metrics"]["preemptions"]))
    assert preempted == [(1.0, 1), (0.0, 0)]


def test_what_was_not_measured_is_null(tmp_path: Path) -> None:
    trace = trace_file(tmp_path, *(line for line in GOOD if line.endswith("gpu")))
    assert coda_simulate("--trace", trace, "--cluster", "2x2x8", "--out", tmp_path / "out").exit_code == 0
    (run,) = json.loads((tmp_path / "out" / "summary.json").read_text())["runs"]
    assert run["metrics"]["cpu_wait_mean_s"] is None
    assert run["metrics"]["cpu_started_10s"] is None


def test_every_row_is_accounted_for(tmp_path: Path) -> None:
    bad = ("a2,u,v,9,60,-1,1,,1,passed,gpu", "a5,u,v,9,nan,1,1,,1,passed,gpu", "a6,u,v,-1,60,1,1,,1,passed,gpu")
    large = ("a7,u,v,9,60,64,64,,1,passed,gpu",)
    trace = trace_file(tmp_path, *GOOD, *bad, *large)
    result = coda_simulate("--trace", trace, "--cluster", "2x2x8", "--out", tmp_path / "out")
    assert result.exit_code == 0
    (run,) = json.loads((tmp_path / "out" / "summary.json").read_text())["runs"]
    metrics = run["metrics"]
    assert (metrics["jobs_finished"], metrics["jobs_refused"], metrics["rows_skipped"]) == (4, 1, 3)
    assert f"refused: {trace}:9: a7 asks 64 GPUs" in result.stderr


def test_what_was_left_out_is_in_the_title_and_its_reasons_in_the_report(tmp_path: Path) -> None:
    bad = ("b1,u,v,9,60,-1,1,,1,passed,gpu", "b2,u,v,9,900,2,1,,1,COMPLETED,gpu")
    options = ("--trace", trace_file(tmp_path, GOOD[0], *bad), "--cluster", "2x2x8", "--out", tmp_path / "out")
    result = coda_simulate(*options)
    assert "(2 lines left out, 20.0 % of the GPU-hours; all others as they are)" in " ".join(result.stdout.split())
    report = (tmp_path / "out" / "report.html").read_text()
    assert "(2 lines left out, 20.0 % of the GPU-hours; all others as they are)" in report.split("</h1>")[0]
    for reason in ("gpus is &#x27;-1&#x27;", "status is &#x27;COMPLETED&#x27;"):
        assert reason in report
    assert "left out, as line 4: status is 'COMPLETED'" in result.stderr


def test_jobs_that_the_policy_never_runs_are_told(tmp_path: Path) -> None:
    # All 16 cores belong to the node's GPUs: whoever may not borrow never runs there.
    trace = trace_file(tmp_path, "c1,u1,v,0,60,0,4,,1,passed,cpu", "g1,u1,v,0,60,1,4,,1,passed,gpu")
    options = ("--trace", trace, "--cluster", "1x4x16", "--out", tmp_path / "out")
    result = coda_simulate(*options, "--without", "borrowing")
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert "Refused: 1 job that never runs here and that no measure of waits" in said
    assert "jobs refused 1 jobs_refused" in said
    report = (tmp_path / "out" / "report.html").read_text()
    assert "<p>Refused: 1 job that never runs here" in report
    assert "efused" not in coda_simulate(*options).stdout
    assert "<p>Refused" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("header", "line", "sentence"),
    [
        ("job_id,user", GOOD[0], "jobs.csv:1: "),
        (",".join(COLUMNS), "a1,u,v,0,nan,1,1,,1,passed,gpu", ":2: duration_s is 'nan'"),
        (",".join(COLUMNS), "a1,u,v,-5,60,1,1,,1,passed,gpu", ":2: submit_s is '-5'"),
        (",".join(COLUMNS), f"{GOOD[0]}\n{GOOD[0]}", ":3: job_id 'a1' was used before, in line 2"),
        (",".join(COLUMNS), "x" * 100_000, ":2: "),
        (",".join(COLUMNS), "a1,u,v,0,60,64,64,,1,passed,gpu", "every one can never fit the cluster"),
    ],
)
def test_a_bad_trace_is_a_clear_sentence(header: str, line: str, sentence: str, tmp_path: Path) -> None:
    trace = trace_file(tmp_path, line, header=header)
    result = coda_simulate("--trace", trace, "--cluster", "2x2x8", "--on-error", "refuse")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_truncated_gzip_file_is_a_clear_sentence(tmp_path: Path) -> None:
    whole = gzip.compress(("\n".join([",".join(COLUMNS), *GOOD])).encode())
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(whole[:-20])
    result = coda_simulate("--trace", path, "--cluster", "2x2x8")
    assert result.exit_code == 2
    assert "the gzip file is damaged or cut short" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policy", "magic"], "there is no policy 'magic': choose of arrival, fifo-skip"),
        (["--without", "luck"], "--without luck: a policy's parts are allocator"),
        (["--policy", "drf", "--without", "arrays"], "--without arrays: drf has no arrays that could be left out"),
        (["--policy", "drf", "--take-back"], "--take-back has no effect on drf: only coda has arrays"),
        (["--policy", "drf", "--auto-division"], "--auto-division has no effect on drf"),
        (["--profiles", "none"], "'none' is no profile set: choose one of paper"),
        (["--cluster", "2x2"], "'2x2' is no group of nodes"),
        (["--workload", "a-year"], "--workload a-year: the generated workload is coda-month"),
        (["--trace", "jobs.csv"], "--trace needs --cluster"),
        (["--trace", "nowhere.csv", "--cluster", "1x1x1"], "nowhere.csv: cannot be read"),
        (["--trace", "jobs.csv", "--cluster", ""], "'' is no group of nodes"),
        (["--workload", "coda-month", "--trace", "jobs.csv"], "--workload coda-month and --trace jobs.csv: give one"),
        (["--on-error", "refuse"], "--on-error refuse is for bad rows of a --trace: coda-month has none"),
        (["--request-table", "t.csv"], "--request-table t.csv is for jobs of a --trace without cores"),
        (["--cluster", "999999x8x48"], "a cluster of 999999 nodes is too large: at most 100000 are possible"),
        (["--cluster", "60000x8x48,60000x4x28"], "a cluster of 120000 nodes is too large"),
        (
            ["--limit", "9", "--warmup", "900d"],
            "--warmup 900d and --drain 0s leave no time to measure: the last job is",
        ),
        (["--limit", "9", "--drain", "900d"], "--warmup 0s and --drain 900d leave no time to measure: the last job is"),
        (["--warmup", ""], "'' is not a duration"),
        (["--drain", ""], "'' is not a duration"),
        (["--max-duration", ""], "'' is not a duration"),
        (["--window", ""], "'' is not a window"),
        (["--restart-aborted"], "--restart-aborted is the default now, as --costs paid: leave it out"),
        (["--warmup", "soon"], "'soon' is not a duration"),
        (["--resumable", "1.5"], "the share of jobs that resume must be 0 to 1, not 1.5"),
        (
            ["--save-every", "1h", "--resumable", "0"],
            "--save-every 1h has no effect with --resumable 0: no GPU job saves",
        ),
        (["--cluster", "shapes.csv"], "shapes.csv: there is no such file of node groups"),
        (["--cluster", "12x8x96x15.5"], "'12x8x96x15.5' has a fraction: nodes, GPUs, cores and GiB are whole numbers"),
        (["--cluster", "4x8x96,12x8x9.5"], "'4x8x96,12x8x9.5' has a fraction"),
        (["--cluster", "a/shapes.csv:large"], "a/shapes.csv: there is no such file of node groups"),
        (["--compress", "0"], "--compress 0.0: must be a number above 0"),
        (["--sample", "3"], "--sample 3: there is nothing to choose without --keep"),
        (["--limit", "5", "--out", "/proc/nowhere"], "--out /proc/nowhere: cannot be written"),
    ],
)
def test_bad_options_are_one_clear_sentence(arguments: list[str], sentence: str) -> None:
    result = coda_simulate(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_ids_without_digits_are_named_by_file_and_line(tmp_path: Path) -> None:
    trace = trace_file(tmp_path, GOOD[0], "alpha,u1,v,60,60,1,3,,1,passed,gpu")
    result = coda_simulate("--trace", trace, "--cluster", "2x2x8", "--keep", 500)
    assert result.exit_code == 2
    assert f"{trace}:3: job_id 'alpha' has no digits" in result.stderr


def test_what_a_tree_of_tenants_and_a_trace_do_not_share_is_said(tmp_path: Path) -> None:
    tree = tmp_path / "tree.csv"
    tree.write_text("name,gpus\nv,2\nw,2\n")
    options = ("--trace", trace_file(tmp_path, *GOOD, "a5,u1,x,90,60,1,3,,1,passed,gpu"), "--cluster", "2x2x8")
    result = coda_simulate(*options, "--tenants", tree)
    assert result.exit_code == 0
    assert f"--tenants {tree}: 1 virtual cluster without a job: w" in result.stderr
    assert f"--tenants {tree}: 1 job in none of its virtual clusters (x)" in result.stderr
    tree.write_text("name,gpus\nvision,2\n")
    refused = coda_simulate(*options, "--tenants", tree)
    assert refused.exit_code == 2
    assert f"--tenants {tree}: no job is in its virtual clusters (vision)" in refused.stderr


def test_a_request_table_that_no_job_needs_is_said(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("gpus,cpus,jobs\n1,4,10\n")
    options = ("--cluster", "2x2x8", "--request-table", table)
    result = coda_simulate("--trace", trace_file(tmp_path, *GOOD), *options)
    assert result.exit_code == 0
    assert f"--request-table {table} was not needed: every job names its cores" in result.stderr
    needed = coda_simulate("--trace", trace_file(tmp_path, "a1,u1,v,0,3600,2,,,1,passed,gpu"), *options)
    assert needed.exit_code == 0
    assert "was not needed" not in needed.stderr


def test_no_warm_up_at_all_can_be_asked_for(tmp_path: Path) -> None:
    days = [f"d{day},u,v,{86_400 * day},60,1,4,,1,passed,gpu" for day in range(12)]
    options = ("--trace", trace_file(tmp_path, *days), "--cluster", "2x2x8")
    assert "measured from 1d after the first" in coda_simulate(*options).stderr
    for nothing in ("0", "0s"):
        result = coda_simulate(*options, "--warmup", nothing, "--drain", nothing)
        assert "measured from 0s after the first submission to 0s before the last" in result.stderr
    assert "'0s' is no usable duration" in coda_simulate(*options, "--max-duration", "0s").stderr


def test_a_submission_far_from_all_others_is_said(tmp_path: Path) -> None:
    day_s, year_s = 86_400, 31_536_000
    rows = [f"j{n},u,v,{50 * year_s + n * day_s},60,1,4,,1,passed,gpu" for n in range(30)]
    wrong = "x0,u,v,0,60,1,4,,1,passed,gpu"
    options = ("--cluster", "2x2x8", "--out", tmp_path / "out")
    said = coda_simulate("--trace", trace_file(tmp_path, wrong, *rows), *options).stderr
    sentence = "1 job is submitted 18250d before all others, as line 2 (x0): the gap counts in every average over time"
    assert sentence in said
    assert sentence in (tmp_path / "out" / "report.html").read_text()
    last = coda_simulate("--trace", trace_file(tmp_path, *rows, wrong.replace(",0,", f",{60 * year_s},")), *options)
    assert "1 job is submitted 3621d after all others, as line 32 (x0)" in last.stderr
    campaigns = [row.replace(",15", ",16") if n < 15 else row for n, row in enumerate(rows)]
    for fine in (rows, campaigns):
        assert "all others" not in coda_simulate("--trace", trace_file(tmp_path, *fine), *options).stderr


def test_why_a_column_is_empty_is_said(tmp_path: Path) -> None:
    batch = [f"j{n},u,v,0,60,1,4,,1,passed,gpu" for n in range(3)]
    options = ("--cluster", "2x2x8", "--out", tmp_path / "out")
    result = coda_simulate("--trace", trace_file(tmp_path, *batch), *options)
    printed, page = " ".join(result.stdout.split()), (tmp_path / "out" / "report.html").read_text()
    for sentence in (
        "Empty (-): shares of GPUs and cores, since no time passes between the first submission and the last.",
        "Empty (-): measures of CPU jobs, since none is submitted in the measured time.",
    ):
        assert sentence in printed
        assert sentence in page
    idle = coda_simulate("--trace", trace_file(tmp_path, *GOOD), "--cluster", "9x2x8")
    assert "while GPU jobs wait, since under coda none waits." in " ".join(idle.stdout.split())
    assert "Empty" not in coda_simulate("--trace", trace_file(tmp_path, *GOOD), "--cluster", "2x2x8").stdout
    cores = coda_simulate(
        "--trace", trace_file(tmp_path, GOOD[2], GOOD[2].replace("a3,u1,v,90", "a9,u1,v,99")), "--cluster", "2x0x8"
    )
    assert "Empty (-): shares of GPUs, since the cluster has none." in cores.stdout


def test_what_seeds_of_one_trace_say_nothing_about_is_said(tmp_path: Path) -> None:
    options = ("--trace", trace_file(tmp_path, *GOOD), "--cluster", "2x2x8", "--out", tmp_path / "out")
    sentence = "All seeds have the same jobs at the same times; a seed draws what they train. So ± says nothing about"
    assert sentence not in " ".join(coda_simulate(*options, "--seed", 1).stdout.split())
    assert sentence in " ".join(coda_simulate(*options, "--seed", 1, "--seed", 2).stdout.split())
    assert sentence in (tmp_path / "out" / "report.html").read_text()


def test_each_kind_of_change_is_counted(tmp_path: Path) -> None:
    rows = ("b1,u,v,0,60,2,,,1,passed,gpu", "b2,u,v,0,60,1,0.5,,1,passed,gpu", "b3,u,v,0,60,4,8,,1,passed,gpu")
    result = coda_simulate("--trace", trace_file(tmp_path, *rows, GOOD[0]), "--cluster", "2x2x8")
    assert (
        "; 1 row: replicas changed to fit the nodes; 1 row: cores rounded up to whole ones per replica; "
        "1 row: cores assumed, the row names none; measured from" in result.stderr
    )
    unchanged = coda_simulate("--trace", trace_file(tmp_path, GOOD[0]), "--cluster", "2x2x8")
    assert "; no row changed; measured from" in unchanged.stderr


def test_memory_that_does_not_count_is_said(tmp_path: Path) -> None:
    trace = trace_file(tmp_path, "m1,u,v,0,60,1,4,256,1,passed,gpu", GOOD[0])
    said = "1 job names memory that does not count: 2x2x8 names none, as 2x2x8x512 does"
    assert said in coda_simulate("--trace", trace, "--cluster", "2x2x8").stderr
    assert "names memory" not in coda_simulate("--trace", trace, "--cluster", "2x2x8x512").stderr
    assert "names memory" not in coda_simulate("--trace", trace_file(tmp_path, GOOD[0]), "--cluster", "2x2x8").stderr


def test_a_shape_is_chosen_from_a_file_by_name(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("shape,nodes,gpus_per_node,cores_per_node\nsmall,2,2,8\nlarge,4,8,48\nunknown,3,8,\n")
    trace = trace_file(tmp_path, *GOOD)
    result = coda_simulate("--trace", trace, "--cluster", f"{shapes}:large")
    assert result.exit_code == 0
    assert "on 4x8x48" in result.stderr
    for cluster, sentence in ((shapes, "choose one of its shapes"), (f"{shapes}:huge", "has no shape 'huge'")):
        refused = coda_simulate("--trace", trace, "--cluster", cluster)
        assert refused.exit_code == 2
        assert sentence in refused.stderr or "cores_per_node" in refused.stderr
