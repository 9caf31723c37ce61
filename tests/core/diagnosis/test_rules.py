"""Rules as data: each built-in one shows what it is for, and a mistake in an added one is named."""

from __future__ import annotations

import pytest

from coda.diagnosis import RankLog, Reason, Retry, built_in_rules, classify, rules_from_toml
from coda.diagnosis.patterns import MOST_CHOICES, Probe, Where, pattern_from_text
from coda.diagnosis.reasons import FACTS
from coda.diagnosis.rules import Kind
from coda.errors import InvalidInput

EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.name}-{number}")
    for rule in built_in_rules().rules
    if rule.kind is not Kind.NOISE
    for number, example in enumerate(rule.examples)
]


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_a_rules_example_has_its_reason(rule: object, example: str) -> None:
    assert classify([RankLog(log=example.encode())]).reason is rule.reason  # type: ignore[attr-defined]


def test_every_rule_that_decides_has_an_example() -> None:
    assert [rule.name for rule in built_in_rules().rules if rule.kind is not Kind.NOISE and not rule.examples] == []


def test_every_reason_of_table_6_has_a_rule_and_facts() -> None:
    assert {rule.reason for rule in built_in_rules().rules} == set(Reason) == set(FACTS)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        pytest.param("abcd+", "may not use +", id="plus"),
        pytest.param("(abcd)*", "may not use *", id="star"),
        pytest.param("(abc|abd){2,9}xyz", "repeats a group", id="a repeated group"),
        pytest.param(r"abcd\d{1,9}{2}", "repeats a repetition", id="a repeated repetition"),
        pytest.param(r"abcd\d{2,}", "needs an upper bound", id="no upper bound"),
        pytest.param("(?=abcd)", "may only use ( and (?:", id="looking ahead"),
        pytest.param(r"(abcd)\1", "may not refer back", id="back reference"),
        pytest.param(r"abc\w{0,40}\w{0,40}", "ways to match", id="too many choices"),
        pytest.param("abcd|efgh", "needs ( ) around alternatives", id="bare alternatives"),
        pytest.param(r"\d{1,3}: \w", "fixed letters", id="nothing fixed"),
        pytest.param("abc(", "is no regular expression", id="open group"),
        pytest.param("x" * 500, "is longer than", id="long"),
    ],
)
def test_a_pattern_that_could_be_slow_or_vague_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=r"the pattern") as caught:
        pattern_from_text(pattern).check()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("[[rule]]\nid = 3\nmatch=['abcd']", "id must be a text", id="id"),
        pytest.param("[[rule]]\nid='a'\nreason='Boom'\nmatch=['abcd']", "reason 'Boom' is not one of", id="reason"),
        pytest.param("[[rule]]\nid='a'\nretry='maybe'\nmatch=['abcd']", "retry 'maybe' is not one of", id="retry"),
        pytest.param("[[rule]]\nid='a'", "needs match, exceptions or codes", id="nothing to look for"),
        pytest.param("[[rule]]\nid='a'\nmatch=['abcd']\ncolour='red'", "unknown field 'colour'", id="field"),
        pytest.param("[[rule]]\nid='a'\nmatch='abcd'", "match must be a list", id="no list"),
        pytest.param("[[rule]]\nid='a'\nmatch=['(a+)+b']", "rule a: the pattern '(a+)+b' may not use +", id="slow"),
        pytest.param("[[rule]]\nid='a'\nmatch=['abc(']", "rule a: the pattern 'abc(' is no regular", id="expression"),
        pytest.param("[[rule]]\nid='a'\nexceptions=['X.Y']", "no name of an exception", id="exception"),
        pytest.param("[[rule]]\nid='a'\ncodes=['1']", "codes must be", id="codes"),
        pytest.param("[[rule]]\nid='a'\nweight=900\nmatch=['abcd']", "weight must be", id="weight"),
        pytest.param("x = ", "is no TOML", id="no TOML"),
        pytest.param("rule = 3", "may only have [[rule]]", id="no tables"),
        pytest.param("[[rule]]\nid='a'\nmatch=['abcd']\n" * 2, "two rules have the id 'a'", id="twice"),
    ],
)
def test_a_mistake_in_added_rules_is_named_with_its_place(text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        rules_from_toml(text, "site.toml")
    assert said in str(caught.value)


def test_added_rules_win_over_equal_ones() -> None:
    added = rules_from_toml(
        '[[rule]]\nid = "site"\nreason = "Permission error"\nretry = "yes"\nweight = 50\n'
        'match = ["CUDA out of memory"]',
        "site.toml",
    )
    log = [RankLog(log=b"RuntimeError: CUDA out of memory")]
    found = classify(log, rules=built_in_rules().with_rules(added))
    assert (found.reason, found.retry, found.rule) == (Reason.PERMISSION, Retry.YES, "site")
    assert classify(log).reason is Reason.GPU_MEMORY


def test_every_built_in_pattern_takes_a_bounded_number_of_steps_per_character() -> None:
    """By construction: `pattern_from_text` counts the choices. Here the texts that make a pattern try them all."""
    assert MOST_CHOICES <= 256
    for _, pattern in built_in_rules().probes.entries:
        near = pattern.source.replace(r"\d", "7").replace(r"\w", "a").replace("\\", "").replace(".*", " ")
        assert not pattern.is_in("") or pattern.source == ""
        pattern.is_in((near[:-1] + "~") * (4096 // len(near)))


def test_a_pattern_that_begins_with_a_letter_matches_at_the_start_of_a_word() -> None:
    pattern = pattern_from_text("preempted by")
    assert pattern.is_in("it was preempted by another")
    assert not pattern.is_in("nonpreempted by another")


@pytest.mark.parametrize(
    ("source", "word", "where"),
    [
        pytest.param("No such file or dir", "such", Where.WHOLE, id="a word between blanks"),
        pytest.param("ncclSystemError", "ncclsystemerror", Where.START, id="a word that may go on"),
        pytest.param(r"\bEvicted\b", "evicted", Where.WHOLE, id="edges of a word"),
        pytest.param("[Ff]ailed", "ailed", Where.INSIDE, id="a part of a word"),
        pytest.param("(?:Value|Key)Error: x", "error", Where.END, id="the end of a word"),
    ],
)
def test_the_probe_of_a_pattern_is_in_every_match(source: str, word: str, where: Where) -> None:
    assert pattern_from_text(source).probe == Probe(word, where)
