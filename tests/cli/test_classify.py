"""`coda classify`: files, standard input, exit codes, and one sentence for what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from coda_cli.__main__ import command_line


def classify(*arguments: str, log: bytes = b"") -> Result:
    return CliRunner().invoke(command_line(), ["classify", *arguments], input=log)


def test_standard_input_is_read_and_the_answer_is_text() -> None:
    ended = classify(log=b"epoch 3\nRuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n")
    assert ended.exit_code == 0
    assert ended.stdout.splitlines()[:4] == [
        "reason:   GPU out of memory",
        "category: AE",
        "evidence: RuntimeError: CUDA out of memory. Tried to allocate 2 GiB (line 2)",
        "retry:    no",
    ]


def test_a_file_is_read_and_the_answer_is_json(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("[rank3]: ModuleNotFoundError: No module named 'apex'\n")
    found = json.loads(classify(str(log), "-o", "json").stdout)
    assert {name: found[name] for name in ("reason", "category", "explicit", "rank", "line", "retry")} == {
        "reason": "Import error",
        "category": "IF/U",
        "explicit": True,
        "rank": 3,
        "line": 1,
        "retry": "no",
    }


def test_yaml_has_what_json_has() -> None:
    log = b"RuntimeError: CUDA out of memory\n"
    assert yaml.safe_load(classify("-o", "yaml", log=log).stdout) == json.loads(classify("-o", "json", log=log).stdout)


@pytest.mark.parametrize(
    ("code", "reason"),
    [("137", "CPU out of memory"), ("139", "Core dump"), ("127", "Import error"), ("1", "No signature")],
)
def test_an_exit_code_decides_where_the_log_says_nothing(code: str, reason: str) -> None:
    assert json.loads(classify("--exit-code", code, "-o", "json", log=b"epoch 1\n").stdout)["reason"] == reason


def test_a_log_decides_before_the_exit_code() -> None:
    found = classify("--exit-code", "137", "-o", "json", log=b"OSError: [Errno 28] No space left on device\n")
    assert json.loads(found.stdout)["subReason"] == "disk full"


def test_of_a_sparse_file_of_a_gigabyte_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "huge.log"
    with log.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.write(b"\nPermissionError: [Errno 13] Permission denied: '/x'\n")
    assert json.loads(classify(str(log), "-o", "json").stdout)["reason"] == "Permission error"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["no-such.log"], "the log no-such.log cannot be read: No such file", id="missing"),
        pytest.param(["/"], "the log / cannot be read: Is a directory", id="folder"),
        pytest.param(["--rules", "no-such.toml"], "--rules no-such.toml cannot be read", id="rules"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(arguments: list[str], said: str) -> None:
    ended = classify(*arguments)
    assert (ended.exit_code, ended.stderr.count("\n")) == (2, 1)
    assert said in ended.stderr


def test_added_rules_are_read_and_their_mistakes_named(tmp_path: Path) -> None:
    rules = tmp_path / "site.toml"
    rules.write_text('[[rule]]\nid = "quota"\nreason = "Job preempted"\nmatch = ["budget of team .* is spent"]\n')
    log = b"scheduler: budget of team red is spent\n"
    found = json.loads(classify("--rules", str(rules), "-o", "json", log=log).stdout)
    assert (found["reason"], found["rule"]) == ("Job preempted", "quota")
    rules.write_text('[[rule]]\nid = "quota"\nmatch = ["(a+)+"]\n')
    ended = classify("--rules", str(rules), log=log)
    assert (ended.exit_code, "rule quota: the pattern '(a+)+' may not use +" in ended.stderr) == (2, True)


@pytest.mark.parametrize("form", ["text", "json", "yaml"])
def test_a_terminal_obeys_nothing_that_a_log_says(form: str) -> None:
    """Escapes within escapes, a reset, the name of a window, and the one-byte form of an escape, in JSON too."""
    said = "\x1b\x1b[m]52;c;Y3VybAo=\x07 \x1bc\x1b\x1b[m[2J \x1b[" + "1;" * 40 + "m \x9b2J \x7f"
    for log in (f"RuntimeError: CUDA out of memory {said}\n", json.dumps({"msg": f"CUDA out of memory {said}"}) + "\n"):
        ended = classify("-o", form, log=log.encode())
        assert "CUDA out of memory" in ended.stdout
        assert ended.stdout.replace("\n", "").isprintable()
        if form == "json":
            assert json.loads(ended.stdout)["evidence"].isprintable()


def test_an_answer_for_people_has_no_signs_that_turn_text_round() -> None:
    assert "\u202e" not in classify(log="RuntimeError: CUDA out of memory \u202egnp.exe\n".encode()).stdout
