"""Whether a job still learns: the rule that its user gave, on its own reports.

Source: Philly, ATC 2019, section 4.1: three quarters of jobs are within 0.1 % of their best loss after 40 % of their
epochs, and the rest takes 62 % of their GPU time."""

from __future__ import annotations

from dataclasses import dataclass

from coda.progress.training_progress import DEFAULT_MARGIN, TrainingProgress
from coda.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When a job has learned what it will. `epochs`: without an improvement by `margin`, a part of the loss.

    `after_epoch`: not before this epoch. `stops`: the job ends then; else its status only says so."""

    epochs: int
    margin: float = DEFAULT_MARGIN
    after_epoch: int = 0
    stops: bool = False


def convergence_text(progress: TrainingProgress | None, rule: StopRule | None) -> str:
    """Return why the job has converged under the rule, in a clause; "" while it has not."""
    plateau = None if progress is None else progress.plateau
    if rule is None or plateau is None or plateau.epochs < rule.epochs or plateau.last_epoch < rule.after_epoch:
        return ""
    since = f"since {plateau.loss:.6g} in epoch {plateau.epoch}"
    return f"the loss has not improved by {100 * rule.margin:g} % for {counted(plateau.epochs, 'epoch')}, {since}"
