import argparse
import sys
from pathlib import Path

import pytest

from coda.errors import InvalidInput
from rig.asking import PAIRS, ask, orders
from rig.results import Answer, Row, answer_from_json


def test_turns_the_order_of_the_arms_round_in_every_pair() -> None:
    assert orders(3, ("coda", "plain")) == [("coda", "plain"), ("plain", "coda"), ("coda", "plain")]


async def echo(options: argparse.Namespace) -> Answer:
    return Answer(question="echo", rows=(Row(name="pairs", value=options.pairs, unit=""),))


@pytest.mark.parametrize(("words", "pairs"), [([], PAIRS), (["--quick"], 1), (["--quick", "--pairs", "3"], 3)])
def test_hands_the_answer_in_as_a_file(
    words: list[str], pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "answer.json"
    monkeypatch.setattr(sys, "argv", ["echo", *words, "--out", str(out)])
    assert ask("Echo.", echo) == 0
    assert answer_from_json(out.read_bytes()).rows[0].value == pairs


def test_says_in_one_sentence_what_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def fail(_options: argparse.Namespace) -> Answer:
        raise InvalidInput("no cluster")

    monkeypatch.setattr(sys, "argv", ["echo.py"])
    assert ask("Echo.", fail) == 1
    assert capsys.readouterr().err == "echo: no cluster\n"
