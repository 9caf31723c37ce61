"""`coda report` and `coda history import` on a store of their own."""

from __future__ import annotations

import time
from pathlib import Path

import orjson
import pytest
import yaml
from sqlalchemy.engine import URL
from typer.testing import CliRunner

from coda_cli.__main__ import command_line
from coda_operator.history.store import Store
from tests.operator_tests.cpu_history.test_table import job

HEADER = "job_id,user,virtual_cluster,submit_s,duration_s,gpus,cpus,memory_gib,nodes_requested,status,kind\n"
ROWS = (
    "a,ann,lab,0,600,16,32,,2,passed,gpu\n"
    "b,<b>,lab,60,60,1,4,,1,failed,gpu\n"
    "c,ann,lab,90,60,1,4,,1,,gpu\n"
    "d,ann,lab,90,60,0,4,,1,passed,cpu\n"
)


def run(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(command_line(), [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def store(tmp_path: Path) -> Path:
    trace, waits, store = tmp_path / "trace.csv", tmp_path / "waits.csv", tmp_path / "history.sqlite"
    trace.write_text(HEADER + ROWS)
    waits.write_text("job_id,observed_wait_s\na,700\n")
    code, _, said = run("history", "import", trace, "--waits", waits, "--history", store)
    assert (code, "3 new records stored" in said) == (0, True)
    return store


def test_a_trace_is_loaded_once(store: Path) -> None:
    trace = store.parent / "trace.csv"
    assert "0 new records stored" in run("history", "import", trace, "--history", store)[2]


def test_a_later_export_of_the_same_name_is_another_trace(store: Path) -> None:
    trace = store.parent / "trace.csv"
    trace.write_text(HEADER + ROWS.replace("c,ann,lab,90,60", "c,ann,lab,90,70"))
    assert "1 new record stored" in run("history", "import", trace, "--history", store)[2]
    assert "0 new records stored" in run("history", "import", trace, "--history", store)[2]
    trace.write_text(HEADER + "".join(f"{number},ann,lab,0,600,1,4,,1,passed,gpu\n" for number in "abc"))
    assert "3 new records stored" in run("history", "import", trace, "--history", store)[2]


def test_a_report_has_the_tables_of_a_loaded_trace(store: Path) -> None:
    code, text, _ = run("report", "--history", store)
    assert code == 0
    assert text.startswith("3 jobs, 3 GPU-hours")
    assert "passed 1 33.3 % 98.8 % -" in " ".join(text.split())


def test_a_report_has_the_cpu_jobs_too(store: Path) -> None:
    opened = Store(URL.create("sqlite", database=str(store)))
    now_s = time.time()
    jobs = [job(number, queued_s=now_s - 500, released_s=now_s - 450, ended_s=now_s - 90) for number in range(40)]
    opened.cpu_jobs.write(jobs, now_s)
    opened.close()
    code, text, _ = run("report", "--history", store)
    assert (code, text.splitlines()[0]) == (0, "3 jobs, 3 GPU-hours; 40 CPU jobs, 8 core-hours")
    assert "Succeeded 40 50s 50s 55s 8.0 0.0 % 0 0" in " ".join(text.split())
    found = orjson.loads(run("report", "--history", store, "-o", "json")[1])
    assert found["cpu"]["owners"][0]["name"] == "ann"
    assert [row["cause"] for row in found["cpu"]["waits"]] == ["InsufficientCPU", "Queued"]


def test_json_and_html_say_the_same(store: Path) -> None:
    found = orjson.loads(run("report", "--history", store, "-o", "json")[1])
    assert [row["jobs"] for row in found["sizes"]] == [2, 0, 0, 1]
    assert found["sizes"][3] | {"wait_p50_s": 700.0, "long_wait_share": 1.0} == found["sizes"][3]
    assert found["failures"][0]["reason"] == "Failed"
    assert yaml.safe_load(run("report", "--history", store, "-o", "yaml")[1]) == found
    page = store.parent / "report.html"
    assert run("report", "--history", store, "-o", "html", "--out", page)[0] == 0
    assert "&lt;b&gt;" in page.read_text()
    assert "<b>" not in page.read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("report",), "no history store is named"),
        (("report", "--history", "nowhere.sqlite"), "--history nowhere.sqlite: there is no such file"),
        (("report", "--history", "mysql://u:secret@h/d"), "only postgresql and sqlite"),
        (("report", "-o", "pdf"), "--output pdf: there are table, json, yaml, html"),
        (("report", "--history", "{store}", "--since", "soon"), "'soon' is not a duration"),
        (("report", "--history", "{store}", "--since", "1ms"), "no job has ended since then"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(
    store: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sentence: str
) -> None:
    for name in ("CODA_HISTORY_URL", "CODA_HISTORY_FILE"):
        monkeypatch.delenv(name, raising=False)
    code, _, said = run(*(word.format(store=store) for word in words))
    assert (code, sentence in said, "secret" in said) == (2, True, False)


def test_waits_that_are_none_name_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(HEADER + ROWS)
    (tmp_path / "waits.csv").write_text("job_id,observed_wait_s\na,soon\n")
    words = ("--waits", tmp_path / "waits.csv", "--history", tmp_path / "h.sqlite")
    code, _, said = run("history", "import", tmp_path / "trace.csv", *words)
    assert (code, "waits.csv:2: it needs job_id and observed_wait_s, a number" in said) == (2, True)


def test_a_file_that_is_no_store_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "h.sqlite").write_text("not a database, though long enough to be read as one " * 20)
    code, _, said = run("report", "--history", tmp_path / "h.sqlite")
    assert (code, len(said.splitlines())) == (1, 1)


def test_a_store_that_does_not_answer_is_not_blamed_on_the_cluster(tmp_path: Path) -> None:
    url = "postgresql://u:secret@127.0.0.1:1/history"
    (tmp_path / "trace.csv").write_text(HEADER + ROWS)
    for words in (("report", "--history", url), ("history", "import", tmp_path / "trace.csv", "--history", url)):
        code, _, said = run(*words)
        last = said.splitlines()[-1]
        assert (code, last.startswith("coda: the history store is away: postgresql")) == (1, True)
        assert ("cluster" in last, "secret" in said) == (False, False)


@pytest.mark.parametrize("form", ["table", "json", "yaml", "html"])
def test_a_report_is_written_whole_or_said_to_be_unwritable_before_the_store_is_read(store: Path, form: str) -> None:
    folder = store.parent / "reports"
    folder.mkdir()
    for out, why in ((folder / "no" / "report", "No such file or directory"), (folder, "Is a directory")):
        code, _, said = run("report", "--history", "nowhere.sqlite", "-o", form, "--out", out)
        assert (code, said) == (2, f"coda: --out {out}: cannot be written: {why}\n")
    assert run("report", "--history", "nowhere.sqlite", "-o", form, "--out", folder / "report")[0] == 2
    assert list(folder.iterdir()) == []
    out = folder / "report"
    printed = run("report", "--history", store, "-o", form)[1]
    assert run("report", "--history", store, "-o", form, "--out", out) == (0, "", "")
    assert out.read_text().split() == printed.split()
    assert list(folder.iterdir()) == [out]


HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,duration,queue\n"
OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
PHILLY = (
    '[{"jobid": "a", "submitted_time": "2017-10-01 00:00:00", "status": "Pass", "vc": "v", "user": "u", "attempts": '
    '[{"start_time": "2017-10-01 02:00:00", "end_time": "2017-10-01 03:00:00", "detail": [{"gpus": ["g0"]}]}]}]'
)


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        (HELIOS + "1,u,v,8,32,1,COMPLETED,2024-05-01 00:00:00,,3600,7200\n", "2h"),
        (HELIOS + "1,u,v,8,32,1,COMPLETED,2024-05-01 00:00:00,2024-05-01 02:00:00,3600,\n", "2h"),
        (HELIOS + "1,u,v,8,32,1,COMPLETED,2024-05-01 00:00:00,,3600,0\n", "0s"),
        (HELIOS + "1,u,v,8,32,1,COMPLETED,2024-05-01 00:00:00,,3600,\n", "-"),
        (OPENB + "p0,4000,1024,1,1000,LS,Succeeded,0,9000,7200\n", "2h"),
        (OPENB + "p0,4000,1024,1,1000,LS,Succeeded,7201,9000,7200\n", "-"),
        (PHILLY, "2h"),
        (PHILLY.replace("02:00:00", "00:00:00"), "0s"),
        (HEADER + ROWS.splitlines()[0], "-"),
        (HEADER.replace("kind", "kind,wait_s") + ROWS.splitlines()[0] + ",7200\n", "2h"),
    ],
)
def test_the_waits_of_a_trace_are_kept_and_what_nobody_recorded_is_no_wait_of_0(
    tmp_path: Path, text: str, wait: str
) -> None:
    (tmp_path / "log").write_text(text)
    code, _, said = run("history", "import", tmp_path / "log", "--history", tmp_path / "h.sqlite")
    assert (code, f"{0 if wait == '-' else 1} of 1 job have a wait" in said) == (0, True)
    told = run("report", "--history", tmp_path / "h.sqlite", "-o", "json")[1]
    seconds = {"2h": 7200.0, "0s": 0.0, "-": None}[wait]
    assert [row["wait_p50_s"] for row in orjson.loads(told)["sizes"] if row["jobs"]] == [seconds]
    owners = run("report", "--history", tmp_path / "h.sqlite")[1].split("Owners")[1]
    assert owners.splitlines()[2].split()[2:4] == [wait, wait]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("x0,100", "none of its job ids is a GPU job of the trace"),
        ("d,100", "none of its job ids is a GPU job of the trace"),
        ("a,inf", "waits.csv:2: it needs job_id and observed_wait_s, a number of seconds: observed_wait_s is 'inf'"),
        (
            "a,1e300",
            "waits.csv:2: it needs job_id and observed_wait_s, a number of seconds: observed_wait_s is '1e300'",
        ),
        ("a,nan", "waits.csv:2: it needs job_id and observed_wait_s, a number of seconds: observed_wait_s is 'nan'"),
    ],
)
def test_waits_that_cannot_be_used_are_refused_before_a_store_is_made(tmp_path: Path, line: str, sentence: str) -> None:
    (tmp_path / "trace.csv").write_text(HEADER + ROWS)
    (tmp_path / "waits.csv").write_text(f"job_id,observed_wait_s\n{line}\n")
    words = ("--waits", tmp_path / "waits.csv", "--history", tmp_path / "h.sqlite")
    code, _, said = run("history", "import", tmp_path / "trace.csv", *words)
    assert (code, sentence in said) == (2, True)
    assert not (tmp_path / "h.sqlite").exists()


def test_waits_may_begin_with_a_mark_of_utf_8(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(HEADER + ROWS)
    (tmp_path / "waits.csv").write_text("\ufeffjob_id,observed_wait_s\na,700\n")
    words = ("--waits", tmp_path / "waits.csv", "--history", tmp_path / "h.sqlite")
    code, _, said = run("history", "import", tmp_path / "trace.csv", *words)
    assert (code, "1 of 3 jobs have a wait" in said) == (0, True)
