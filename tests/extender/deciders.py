"""The planner process's work without a process: what it is sent and what it answers go through the same bytes."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import AsyncIterator, Callable, Iterable

from coda.model.decision import Start
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
    """Answers as a planner process does. `before_start` is called once, between the first start and its answer."""

    def __init__(self, config: PolicyConfig, before_start: Callable[[], None] | None = None) -> None:
        self._answering = Answering()
        self._before_start = before_start
        assert not [*self._answering.take(Setup(config))]
        self.pid = os.getpid()

    async def ask(self, question: Iterable[Message]) -> AsyncIterator[Message]:
        for message in question:
            for answer in self._answering.take(through_bytes(message)):
                await asyncio.sleep(0)
                is_start = isinstance(answer, Orders) and any(isinstance(item, Start) for item in answer.items)
                if is_start and self._before_start is not None:
                    self._before_start()
                    self._before_start = None
                if isinstance(answer, Failure):
                    raise ProcessFailed("error", answer.text)
                yield through_bytes(answer)
                if isinstance(answer, AnswerEnd):
                    return

    def kill(self) -> None:
        pass
