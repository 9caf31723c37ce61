"""The one place where a cycle judges a class of jobs, so that no class harms the others.

An error in judging it refuses the class, see `faults`. What judging costs is counted, and a class that there is no time
for is not judged in this cycle, see `JudgingBudget`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from coda.cache.gang_class import GangClass
from coda.cache.judging_budget import JudgingBudget
from coda.cycle.faults import refuse_class
from coda.model.decision import Fault, WaitCode, WaitReason

COSTLY_TO_JUDGE: Final = WaitReason(
    code=WaitCode.JUDGED_IN_TURNS,
    message="to compare what it asks for with the nodes takes long, so it is tried less often, in turns with others"
    " like it; fewer terms and values in its node affinity help",
)

MANY_TO_JUDGE: Final = WaitReason(
    code=WaitCode.JUDGED_IN_TURNS,
    message="the waiting jobs of its namespace ask for so many different things that they are tried in turns; jobs that"
    " ask for the same are tried together",
)

MANY_START: Final = WaitReason(
    code=WaitCode.HELD_BY_POLICY, message="so many CPU jobs start now that they do in turns, some hundreds at a time"
)

Subject = TypeVar("Subject")
Answer = TypeVar("Answer")


class Judging:
    """The questions of one cycle about classes of jobs, and the errors in them. Without a budget, all are asked."""

    def __init__(self, budget: JudgingBudget | None) -> None:
        self.faults: list[Fault] = []
        self._budget = budget
        self._last: tuple[GangClass, float] | None = None  # the last question's class and cost, not charged yet

    def ask(
        self, gang_class: GangClass, question: Callable[[Subject], Answer], subject: Subject, otherwise: Answer
    ) -> Answer:
        """Return what `question` answers about the class; `otherwise` if it cannot be judged, or not in this cycle."""
        budget = self._budget
        self._charge_last()
        if gang_class.fault is not None or (budget is not None and not budget.admits(gang_class)):
            return otherwise
        began_s = budget.clock() if budget is not None else 0.0
        answer = otherwise
        try:
            answer = question(subject)
        except Exception as error:  # one job that cannot be judged must not hold up the others
            self.faults.append(refuse_class(gang_class, error))
        if budget is not None:
            self._last = (gang_class, budget.clock() - began_s)
        return answer

    def starts(self, gang_class: GangClass) -> None:
        """The last question led to a start: that is no cost of judging."""
        self._last = None
        if self._budget is not None:
            self._budget.note_start(gang_class)

    def reserves(self, gang_class: GangClass) -> None:
        """The last question led to nodes being kept: that is no cost, and the class is judged in the next cycle too."""
        self._last = None
        if self._budget is not None:
            self._budget.reserved_for.add(gang_class)

    def left_out_s(self, gang_class: GangClass) -> float | None:
        """How long the class has not been judged, for want of time; None if it is judged in this cycle."""
        return None if self._budget is None else self._budget.left_out_s(gang_class)

    @property
    def many_cpu_jobs_start(self) -> bool:
        """True if no more CPU jobs start in this cycle, since so many do."""
        return self._budget is not None and self._budget.many_cpu_jobs_start

    def is_costly(self, gang_class: GangClass) -> bool:
        """True if judging the class takes long, not only all classes of its namespace together."""
        return self._budget is not None and self._budget.is_costly(gang_class)

    def end(self) -> float | None:
        """The cycle ends. Return when the next one should be for the sake of what was left out; None: nothing was."""
        self._charge_last()
        return None if self._budget is None else self._budget.end()

    def _charge_last(self) -> None:
        if self._last is not None and self._budget is not None:
            self._budget.charge(*self._last)
            self._last = None
