"""Rules of the platform team: read from a folder at the start, before the built-in ones, bad ones refused alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coda.diagnosis import Diagnosis, RankLog, built_in_rules, classify
from coda.diagnosis.platform_rules import MOST_CHARS, platform_rules
from coda.errors import InvalidInput
from coda_operator.failure_rules import read_failure_rules

RULE = '[[rule]]\nid = "{0}"\nreason = "{1}"\nweight = 90\nmatch = ["budget of team .* is spent"]\n'
GOOD = RULE.format("good", "Job preempted") + 'examples = ["the budget of team red is spent"]\n'
LOG = [RankLog(log=b"scheduler: budget of team red is spent")]


def judged(folder: Path) -> Diagnosis:
    return classify(LOG, rules=read_failure_rules(str(folder)).book)


def test_without_a_folder_the_built_in_rules_hold() -> None:
    assert read_failure_rules("").book is built_in_rules()


def test_the_first_file_of_a_folder_decides(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(RULE.format("first", "Job preempted") + RULE.format("next", "Syntax error"))
    (tmp_path / "b.toml").write_text(RULE.format("second", "Permission error"))
    (tmp_path / "notes.txt").write_text("no rule")
    assert read_failure_rules(str(tmp_path)).refused == ()
    assert judged(tmp_path).rule == "first"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        pytest.param("[[rule", "bad.toml is no TOML", id="no TOML"),
        pytest.param("x = 1", "bad.toml may only have [[rule]] tables", id="other tables"),
        pytest.param("rule = 3", "bad.toml may only have [[rule]] tables", id="no list"),
        pytest.param("rule = [3]", "bad.toml: rule 1 is no table", id="no table"),
        pytest.param(RULE.format("x", "Bad luck"), "bad.toml: rule x: reason 'Bad luck' is not one of", id="reason"),
        pytest.param(RULE.format("import", "Job preempted"), "rule import: another rule has", id="a built-in id"),
        pytest.param(RULE.format("good", "Job preempted"), "rule good: another rule has", id="an id of its own"),
        pytest.param('[[rule]]\nid = "x"\n', "rule x: needs match, exceptions or codes", id="nothing to look for"),
        pytest.param('[[rule]]\nid = "x"\nmatch = ["(a+)+boom"]\n', "bad.toml: rule x: ", id="takes for ever"),
        pytest.param('[[rule]]\nid = "x"\nweight = 1.5\nmatch = ["boom"]\n', "a field is a text", id="a fraction"),
        pytest.param('[[rule]]\nid = "x"\nmatch = [{a = 1}]\n', "a field is a text", id="a table in a list"),
        pytest.param('[[rule]]\nmatch = ["boom"]\n', "bad.toml: rule 1: needs an id", id="no id"),
        pytest.param(f'[[rule]]\nid = "x"\nmatch = ["{"b" * MOST_CHARS}"]\n', "it has more than", id="too long"),
        pytest.param(f"x = {'9' * 5000}", "bad.toml is no TOML", id="a number of 5000 digits"),
        pytest.param('[[rule]]\nid = "x"\nmatch = ["hello {99999999999999}"]\n', "rule x: ", id="repeats for ever"),
        pytest.param(
            '[[rule]]\nid = "x"\nmatch = ["boom"]\nexamples = ["bang"]\n',
            "bad.toml: rule x: it does not find its example 'bang'",
            id="it does not find its example",
        ),
    ],
)
def test_a_bad_rule_is_refused_in_one_sentence_and_the_others_go_on(tmp_path: Path, bad: str, said: str) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "bad.toml").write_text(bad)
    found = read_failure_rules(str(tmp_path))
    (sentence,) = found.refused
    assert said in sentence
    assert "\n" not in sentence
    assert (found.accepted, judged(tmp_path).rule) == (1, "good")


def test_a_bad_rule_does_not_take_the_rest_of_its_file_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(RULE.format("x", "Bad luck") + GOOD)
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    found = read_failure_rules(str(tmp_path))
    assert (found.accepted, len(found.refused), judged(tmp_path).rule) == (1, 2, "good")


def test_strange_texts_reach_the_rule_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD + "advice = 'say \"€ \\ 😀\"'\n", encoding="utf-8")
    assert judged(tmp_path).advice == 'say "€ \\ 😀"'


def test_as_many_rules_as_a_configmap_holds_are_read_in_linear_time() -> None:
    rule = '[[rule]]\nid = "r{0}"\nmatch = ["budget {0} is spent"]\nexamples = ["budget {0} is spent"]\n'
    spent_s = []
    for count, accepted in ((250, 250), (2500, 2000)):
        rules = "".join(rule.format(number) for number in range(count))
        started_s = time.process_time()
        found = platform_rules([("many.toml", rules)], built_in_rules())
        spent_s.append(time.process_time() - started_s)
        assert (found.accepted, len(found.refused)) == (accepted, count - accepted)
    assert spent_s[1] < 30 * spent_s[0]  # if it is linear 10, if it is quadratic 100


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"CODA_FAILURE_RULES .*none cannot be read: .*No such file"):
        read_failure_rules(str(tmp_path / "none"))
