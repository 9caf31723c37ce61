"""The planner process's work without a process: what it is sent and what it answers go through the same bytes."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import AsyncIterator, Callable, Iterable

from coda.model.decision import Grant, Start
from coda.policy import PolicyConfig
from coda_extender.planner_process import Message
from coda_extender.planner_process.answering import Answering
from coda_extender.planner_process.messages import PREFIX, AnswerEnd, Failure, Orders, Setup, frame
from coda_extender.planner_process.process import ProcessFailed


def through_bytes(message: Message) -> Message:
    """The message as the other end reads it."""
    read: Message = pickle.loads(frame(message)[PREFIX.size :])
    return read


class InProcess:
    """Answers as a planner process does. `meanwhile` is called once, before the first answer with a start or grant."""

    def __init__(self, config: PolicyConfig, meanwhile: Callable[[], None] | None = None) -> None:
        self._answering = Answering()
        self._meanwhile = meanwhile
        assert not [*self._answering.take(Setup(config))]
        self.pid = os.getpid()

    async def ask(self, question: Iterable[Message]) -> AsyncIterator[Message]:
        for message in question:
            for answer in self._answering.take(through_bytes(message)):
                await asyncio.sleep(0)
                items = answer.items if isinstance(answer, Orders) else ()
                if self._meanwhile is not None and any(isinstance(item, Start | Grant) for item in items):
                    self._meanwhile()
                    self._meanwhile = None
                if isinstance(answer, Failure):
                    raise ProcessFailed("error", answer.text)
                yield through_bytes(answer)
                if isinstance(answer, AnswerEnd):
                    return

    def kill(self) -> None:
        pass
