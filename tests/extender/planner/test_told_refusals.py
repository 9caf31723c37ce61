"""What the planner process tells of why jobs wait: news at once, new numbers in turns, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterable
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from coda.cycle import Part
from coda.model import JobId, WaitCode
from coda.model.decision import Refusal, WaitReason
from coda.policy import PolicyConfig
from coda_extender.planner_process import AnswerEnd, ChangedRefusals, Kind, Question, Values, told_refusals
from coda_extender.planner_process.answering import Answering
from coda_extender.planner_process.messages import REFUSALS, Setup
from coda_extender.planner_process.told_refusals import AGAIN_S, NUMBERS, ToldRefusals
from tests.builders import job, node

MANY = 3 * NUMBERS + 17


def reason(free: int, code: WaitCode = WaitCode.INSUFFICIENT_GPUS) -> WaitReason:
    return WaitReason(code=code, message=f"{free} GPUs are free", numbers={"free": free})


def refused(names: Iterable[int], why: WaitReason, generation: int = 1) -> list[Refusal]:
    return [Refusal(JobId(f"default/j{name}"), generation, why) for name in names]


class Extender:
    """Takes what it is told."""

    def __init__(self) -> None:
        self.told = ToldRefusals()
        self.known: dict[JobId, Refusal] = {}

    def hear(self, refusals: Iterable[Refusal]) -> list[JobId]:
        """Return whom the answer spoke of."""
        heard: list[JobId] = []
        for message in self.told.changes(tuple(refusals)):
            assert sum(len(group.jobs) for group in message.groups) + len(message.gone) <= REFUSALS
            for generation, why, jobs in message.groups:
                self.known |= {each: Refusal(each, generation, why) for each in jobs}
                heard += jobs
            for each in message.gone:
                del self.known[each]
                heard.append(each)
        assert len(heard) == len(set(heard))
        return heard


def test_first_reasons_and_new_codes_are_told_at_once() -> None:
    extender = Extender()
    assert len(extender.hear(refused(range(MANY), reason(1)))) == MANY
    full = reason(1, WaitCode.VIRTUAL_CLUSTER_FULL)
    assert len(extender.hear(refused(range(MANY), full))) == MANY
    assert len(extender.hear(refused(range(MANY), full, generation=2))) == MANY
    assert not extender.told.has_more


def test_new_numbers_are_told_in_turns_and_the_latest_of_them() -> None:
    extender = Extender()
    extender.hear(refused(range(MANY), reason(0)))
    first = extender.hear(refused(range(MANY), reason(1)))
    second = extender.hear(refused(range(MANY), reason(2)))
    assert len(first) == len(second) == NUMBERS
    assert not {*first} & {*second}  # whoever was told waits for the others
    assert {extender.known[each].reason.numbers["free"] for each in second} == {2}
    last = refused(range(MANY), reason(3))
    answers = 0
    while extender.told.has_more:
        extender.hear(last)
        answers += 1
    assert answers == -(-MANY // NUMBERS)
    assert extender.known == {each.job: each for each in last}
    assert not extender.hear(last)


def test_numbers_that_are_as_they_were_told_need_no_turn() -> None:
    extender = Extender()
    extender.hear(refused(range(MANY), reason(0)))
    assert not extender.hear(refused(range(MANY), reason(0)))  # equal, and other objects
    assert not extender.told.has_more


def test_numbers_that_went_back_before_their_turn_are_not_told() -> None:
    extender = Extender()
    before = refused(range(MANY), reason(0))
    extender.hear(before)
    told = extender.hear(refused(range(MANY), reason(1)))
    assert extender.hear(before) == told
    assert not extender.told.has_more
    assert extender.known == {each.job: each for each in before}


def test_a_new_code_and_an_end_are_told_though_numbers_of_the_job_wait() -> None:
    extender = Extender()
    extender.hear(refused(range(MANY), reason(0)))
    extender.hear(refused(range(MANY), reason(1)))
    turned, gone = NUMBERS, NUMBERS + 1  # whose turn is next
    last = [
        *refused(set(range(MANY)) - {turned, gone}, reason(1)),
        *refused([turned], reason(1, WaitCode.VIRTUAL_CLUSTER_FULL)),
    ]
    while True:
        extender.hear(last)
        assert extender.known.keys() == {each.job for each in last}
        assert extender.known[last[-1].job] == last[-1]
        if not extender.told.has_more:
            break
    assert extender.known == {each.job: each for each in last}


worlds = st.lists(
    st.dictionaries(
        st.integers(0, 5),
        st.tuples(st.integers(1, 2), st.integers(0, 2), st.sampled_from([WaitCode.INSUFFICIENT_GPUS, WaitCode.EDITED])),
    ),
    max_size=8,
)


@given(worlds)
def test_codes_are_right_after_each_answer_and_numbers_once_all_had_their_turn(
    rounds: list[dict[int, tuple[int, int, WaitCode]]],
) -> None:
    extender = Extender()
    refusals: list[Refusal] = []
    with patch.object(told_refusals, "NUMBERS", 2):  # so that some wait while others come, go and change
        for now in rounds:
            refusals = [
                each
                for name, (generation, free, code) in now.items()
                for each in refused([name], reason(free, code), generation)
            ]
            extender.hear(refusals)
            known = {job: (each.generation, each.code) for job, each in extender.known.items()}
            assert known == {each.job: (each.generation, each.code) for each in refusals}
        for _ in range(3):  # six jobs, two in an answer
            extender.hear(refusals)
    assert not extender.told.has_more
    assert extender.known == {each.job: each for each in refusals}


def test_the_planner_is_asked_again_while_numbers_wait_for_their_turn() -> None:
    answering = Answering()
    assert not [*answering.take(Setup(PolicyConfig()))]
    jobs = [job(f"j{at}", gpus=9, user=f"u{at}") for at in range(MANY)]
    assert not [*answering.take(Values(Part.JOBS, [(each.id, each) for each in jobs]))]
    told, ends = 0, []
    for nodes in (1, 2, 2, 2, 2, 2):
        some = [(f"n{at}", node(f"n{at}")) for at in range(nodes)]
        assert not [*answering.take(Values(Part.NODES, some))]
        for message in answering.take(Question(Kind.CYCLE, 1, 1000.0)):
            if isinstance(message, ChangedRefusals):
                told += sum(len(group.jobs) for group in message.groups)
            elif isinstance(message, AnswerEnd):
                ends.append(message.wake_s)
    assert told == 2 * MANY
    assert ends == [None, *[1000.0 + AGAIN_S] * 3, None, None]
