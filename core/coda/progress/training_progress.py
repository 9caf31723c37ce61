"""What is known of an attempt's progress after each report: the last values, the best loss, and how long it stands.

What a report leaves out stays as it was. A step that goes back is a job whose workers began again from their last
checkpoint, and is believed; what was best stays. The times are those of who reads the reports, never the job's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from coda.progress.job_report import JobReport
from coda.progress.stall import Reached

DEFAULT_MARGIN = 0.001
"""The part of the loss that counts as an improvement. Source: Philly, ATC 2019, section 4.1 (0.1 %)."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """The last loss that was better than the one before by the margin, and the epochs that were seen since.

    `epochs` counts epochs that were seen, not those between them: whoever looks rarely concludes later, not wrongly."""

    loss: float
    epoch: int
    epochs: int = 0
    last_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """The progress of one attempt. None: not known. Times are seconds since 1970, 0 for none."""

    attempt: int
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: int | None = None
    loss: float | None = None
    learning_rate: float | None = None
    best_loss: float | None = None
    best_epoch: int | None = None
    plateau: Plateau | None = None
    saved_step: int | None = None
    saved_s: float = 0.0  # when the save was first seen
    answer: str = ""  # the id of the stop that it has answered by saving
    changed_s: float = 0.0  # when anything of it was last seen to change
    end_s: float = 0.0  # when it is expected to end
    message: str = ""  # what is not believed, or what is advised

    @property
    def reached(self) -> Reached:
        """How far the attempt came."""
        return Reached(step=self.step, saved_step=self.saved_step, epoch=self.epoch)

    @property
    def done_share(self) -> float | None:
        """The part that is done, 0..1, by steps or else by epochs; None where the total is not known."""
        if self.step is not None and self.total_steps:
            return min(1.0, self.step / self.total_steps)
        if self.epoch is not None and self.total_epochs:
            return min(1.0, self.epoch / self.total_epochs)
        return None


def progress_after(
    before: TrainingProgress | None, report: JobReport, attempt: int, now_s: float, margin: float = DEFAULT_MARGIN
) -> TrainingProgress:
    """Return what is known after a report; `end_s` and `message` stay as they were. The same report again changes
    nothing. `before` of another attempt counts for nothing. `margin`: the part of the loss that is an improvement."""
    if before is None or before.attempt != attempt:
        before = TrainingProgress(attempt=attempt)
    of_loss = report.loss_epoch
    if of_loss is None and report.epoch is not None:
        of_loss = int(report.epoch)
    best_loss, best_epoch = before.best_loss, before.best_epoch
    if report.loss is not None and (best_loss is None or report.loss < best_loss):
        best_loss, best_epoch = report.loss, of_loss
    saved_s, answer = before.saved_s, report.answer or before.answer
    if (report.saved_step is not None and report.saved_step != before.saved_step) or answer != before.answer:
        saved_s = now_s
    after = replace(
        before,
        step=_newer(report.step, before.step),
        total_steps=_newer(report.total_steps, before.total_steps),
        epoch=_newer(report.epoch, before.epoch),
        total_epochs=_newer(report.total_epochs, before.total_epochs),
        loss=_newer(report.loss, before.loss),
        learning_rate=_newer(report.learning_rate, before.learning_rate),
        best_loss=best_loss,
        best_epoch=best_epoch,
        plateau=_plateau_after(before.plateau, report.loss, of_loss, margin),
        saved_step=_newer(report.saved_step, before.saved_step),
        saved_s=saved_s,
        answer=answer,
    )
    return after if after == before else replace(after, changed_s=now_s)


def _newer(new: _T | None, old: _T | None) -> _T | None:
    return old if new is None else new


def _plateau_after(before: Plateau | None, loss: float | None, epoch: int | None, margin: float) -> Plateau | None:
    if loss is None or epoch is None:
        return before
    if before is None or loss < before.loss - margin * abs(before.loss):
        return Plateau(loss=loss, epoch=epoch, last_epoch=epoch)
    if epoch <= before.last_epoch:  # the same one, or one that is done again
        return before
    return Plateau(loss=before.loss, epoch=before.epoch, epochs=before.epochs + 1, last_epoch=epoch)
