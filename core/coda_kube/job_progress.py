"""`spec.stopWhen` and `status.progress` of a TrainingJob, to the core's values and back.

Reading is strict, as for all that another program may have written: what cannot be raises InvalidInput.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from coda.errors import InvalidInput
from coda.progress import Plateau, StopRule, TrainingProgress, convergence_text
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds

Item = Mapping[str, Any]


def progress_json(progress: TrainingProgress) -> Json:
    """Return `status.progress`. What is not known is left out."""
    plateau = progress.plateau
    fields = {
        "step": progress.step,
        "totalSteps": progress.total_steps,
        "epoch": None if progress.epoch is None else round(progress.epoch, 3),
        "totalEpochs": progress.total_epochs,
        "loss": progress.loss,
        "learningRate": progress.learning_rate,
        "bestLoss": progress.best_loss,
        "bestEpoch": progress.best_epoch,
        "plateau": plateau
        and {
            "loss": plateau.loss,
            "epoch": plateau.epoch,
            "epochs": plateau.epochs,
            "lastEpoch": plateau.last_epoch,
        },
        "savedStep": progress.saved_step,
        "savedTime": time_from_seconds(progress.saved_s) if progress.saved_s else None,
        "stopAnswer": progress.answer or None,
        "time": time_from_seconds(progress.changed_s) if progress.changed_s else None,
        "estimatedEnd": time_from_seconds(progress.end_s) if progress.end_s else None,
        "message": progress.message or None,
    }
    return {"attempt": progress.attempt} | {name: value for name, value in fields.items() if value is not None}


def progress_from_json(status: Item) -> TrainingProgress | None:
    """Read `status.progress` of a whole status; None if there is none. Raises InvalidInput."""
    item = status.get("progress")
    if not item:
        return None
    try:
        plateau = item.get("plateau")
        return TrainingProgress(
            attempt=_whole(item, "attempt") or 0,
            step=_whole(item, "step"),
            total_steps=_whole(item, "totalSteps"),
            epoch=_number(item, "epoch"),
            total_epochs=_whole(item, "totalEpochs"),
            loss=_number(item, "loss"),
            learning_rate=_number(item, "learningRate"),
            best_loss=_number(item, "bestLoss"),
            best_epoch=_whole(item, "bestEpoch"),
            plateau=None if plateau is None else _plateau(plateau),
            saved_step=_whole(item, "savedStep"),
            saved_s=seconds_from_time(item.get("savedTime")),
            answer=str(item.get("stopAnswer") or ""),
            changed_s=seconds_from_time(item.get("time")),
            end_s=seconds_from_time(item.get("estimatedEnd")),
            message=str(item.get("message") or ""),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"status.progress cannot be read: {error!r:.100}") from error


def stop_rule_from_json(spec: Item) -> StopRule | None:
    """Read `spec.stopWhen`, with the definition's defaults filled in; None if the job has no rule."""
    rule = spec.get("stopWhen")
    if not rule:
        return None
    return StopRule(
        epochs=int(rule["noImprovementEpochs"]),
        margin=int(rule.get("marginPerMille", 1)) / 1000,
        after_epoch=int(rule.get("afterEpoch", 0)),
        stops=rule.get("action") == "Stop",
    )


def stop_text(spec: Item, status: Item, attempt: int) -> str:
    """Return why the job is to end now by its own rule, in a clause; "" if it is not. Never raises for the status."""
    rule = stop_rule_from_json(spec)
    if rule is None or not rule.stops:
        return ""
    try:
        progress = progress_from_json(status)
    except InvalidInput:
        return ""
    return convergence_text(progress, rule) if progress is not None and progress.attempt == attempt else ""


def _plateau(item: Item) -> Plateau:
    loss, epoch = _number(item, "loss"), _whole(item, "epoch")
    if loss is None or epoch is None:
        raise ValueError("a plateau needs loss and epoch")
    return Plateau(
        loss=loss, epoch=epoch, epochs=_whole(item, "epochs") or 0, last_epoch=_whole(item, "lastEpoch") or 0
    )


def _whole(item: Item, name: str) -> int | None:
    number = item.get(name)
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
        raise ValueError(f"{name} is {number!r:.40}")
    return number


def _number(item: Item, name: str) -> float | None:
    number = item.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise ValueError(f"{name} is {number!r:.40}")
    return float(number)
