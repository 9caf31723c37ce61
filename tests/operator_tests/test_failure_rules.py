"""Rules of the platform team: read from a folder at the start, before the built-in ones, mistakes named."""

from __future__ import annotations

from pathlib import Path

import pytest

from coda.diagnosis import RankLog, built_in_rules, classify
from coda.errors import InvalidInput
from coda_operator.failure_rules import read_failure_rules

RULE = '[[rule]]\nid = "{0}"\nreason = "{1}"\nweight = 90\nmatch = ["budget of team .* is spent"]\n'
LOG = [RankLog(log=b"scheduler: budget of team red is spent")]


def test_without_a_folder_the_built_in_rules_hold() -> None:
    assert read_failure_rules("") is built_in_rules()


def test_the_first_file_of_a_folder_decides(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(RULE.format("first", "Job preempted"))
    (tmp_path / "b.toml").write_text(RULE.format("second", "Permission error"))
    (tmp_path / "notes.txt").write_text("no rule")
    assert classify(LOG, rules=read_failure_rules(str(tmp_path))).rule == "first"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("[[rule", "site.toml is no TOML", id="no TOML"),
        pytest.param(RULE.format("x", "Bad luck"), "site.toml: rule x: reason 'Bad luck' is not one of", id="reason"),
        pytest.param(RULE.format("import", "Job preempted"), "two rules have the id 'import'", id="a built-in id"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_failure_rules(str(tmp_path))
    assert str(caught.value).startswith(f"CODA_FAILURE_RULES {tmp_path}: ")
    assert said in str(caught.value)


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"CODA_FAILURE_RULES .*none cannot be read: .*No such file"):
        read_failure_rules(str(tmp_path / "none"))
