"""What a training script may say to Coda, and hear from it. Nothing here raises, and nothing is needed to train.

It lives in the user's image: the standard library only, Python 3.8, nothing of Coda. On any other machine than rank 0
of a TrainingJob `report` and `saved` do nothing. docs/progress.md has the files behind it, for other languages.

    import coda_job

    for step, batch in enumerate(batches):
        loss = train(batch)
        if step % 100 == 0:
            coda_job.report(step=step, total_steps=len(batches), loss=loss.item())
        if coda_job.stopping():
            save(step)
            coda_job.saved(step)
            break
"""

from __future__ import annotations

from coda_job.progress_file import ProgressFile
from coda_job.stop_signal import StopSignal

__all__ = ["notice", "report", "saved", "stopping"]

_progress = ProgressFile()
_stop = StopSignal()


def report(
    step: object = None,
    epoch: object = None,
    loss: object = None,
    lr: object = None,
    *,
    total_steps: object = None,
    total_epochs: object = None,
) -> None:
    """Say how far the job is. What is left out stays as it was said last; a tensor of one number is one.

    Cheap: it writes at most once a second, and at the end. `epoch` counts from 0 and may have a fraction. Give the
    loss that shows whether the job learns: of a validation, or a mean; `spec.stopWhen` goes by it. With a total,
    `kubectl get tj -o wide` shows when the job ends."""
    _progress.say(
        {
            "step": step,
            "epoch": epoch,
            "loss": loss,
            "lr": lr,
            "total_steps": total_steps,
            "total_epochs": total_epochs,
        }
    )


def saved(step: object = None) -> None:
    """Say that a checkpoint of `step` is complete; without a step, of the one that was reported last.

    After `stopping()` was true it is also the answer: the job is stopped at once. So save first."""
    _progress.say_saved(step, _stop.id)


def stopping() -> bool:
    """Return whether the job is to save and end now: it was sent SIGTERM, or the file `stop` is there.

    From the first call on SIGTERM no longer ends this process by itself: ask after every step, and leave once it is
    true. Kubernetes kills what is left after terminationGracePeriodSeconds. Call it first in the main thread."""
    return _stop.is_set()


def notice() -> int | None:
    """Return how many seconds there were to save when the stop was announced; None if nobody said.

    None too after a mere SIGTERM: then there is terminationGracePeriodSeconds."""
    return _stop.notice_s()
